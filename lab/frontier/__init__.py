"""A step under every change that leaves its mathematics as it is: what each costs, and which to take."""
