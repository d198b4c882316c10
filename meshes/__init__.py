"""Where a program runs: axes of a mesh, layouts of arrays on it, targets to compile for, and what the hardware can
do."""

if __name__ != "lab.meshes":
    raise ImportError("import lab.meshes: this folder is a part of the package lab; install it with pip install -e .")
