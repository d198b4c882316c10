"""The book's formulas, a module a part: numbers in, numbers out, exact where bytes are counted. No JAX here."""
