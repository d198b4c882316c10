"""`python -m lab.tour.ahead`, as it was called before `lab.measure`."""
