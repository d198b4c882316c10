"""The smallest program of each kind of finding, by the name of the kind: what `lab explain KIND` shows."""
