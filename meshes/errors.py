"""The error for input that a person can mend."""


class Unusable(ValueError):
    """One line: what was found, what was expected, what to do. The command line prints it and ends with status 2."""
