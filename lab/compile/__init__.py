"""From a program to its compiled text and its ledger: in this process, in another one, from a dump or a file."""
