"""What compilers make of changes of placement, beside the cheapest route."""
