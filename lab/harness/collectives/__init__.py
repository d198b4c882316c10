"""What the experiments on collectives share: a program of many kernels, the ledger that their statements ask for, and
laws to compute."""
