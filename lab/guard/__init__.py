"""Guards for tests: budgets and snapshots of what a program communicates."""
