"""The kinds of faults: one module for those that one mechanism causes, each a function of the program to its
findings."""
