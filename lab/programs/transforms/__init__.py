"""Changes of a strategy's program, and of the ledger that theory predicts for it; composed with `|`."""
