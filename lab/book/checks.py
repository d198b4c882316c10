"""What every formula asks of its arguments."""


def positive(**arguments: float) -> None:
    """Raises ValueError naming the first argument that is not above zero."""
    for name, value in arguments.items():
        if not value > 0:
            raise ValueError(f"{name}={value}: expected a number above 0")
