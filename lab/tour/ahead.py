"""`python -m lab.tour.ahead`, as it was called before `lab.measure`."""

from lab.measure.tour.ahead import main

if __name__ == "__main__":
    main()
