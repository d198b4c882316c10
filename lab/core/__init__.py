"""The currency: transfers and ledgers, how two of them differ, units and element types. Imports no JAX."""
