"""Programs, each with the ledger that theory predicts for it."""
