"""Where a program runs: axes of a mesh, layouts of arrays on it, targets to compile for, and what the hardware can do."""
