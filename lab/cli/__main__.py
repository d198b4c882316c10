"""`python -m lab.cli`."""

from lab.cli.main import main

main()
