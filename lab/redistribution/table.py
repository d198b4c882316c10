"""`python -m lab.redistribution.table`, as it was called before `lab.measure`."""

from lab.measure.redistribution.table import main

if __name__ == "__main__":
    main()
