"""The error for input that a person can mend, and what others say."""


class UsageError(ValueError):
    """One line: what was found, what was expected, what to do. The command line prints it and ends with status 2."""


def first_line(failure: BaseException) -> str:
    """What an error of a library comes to, where the rest is its stack."""
    return str(failure).strip().partition("\n")[0][:200] or type(failure).__name__
