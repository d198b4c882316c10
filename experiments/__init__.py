"""One question a file, named after its chapter; each has an `EXPERIMENT`."""

if __name__ != "lab.experiments":
    raise ImportError(
        "import lab.experiments: this folder is a part of the package lab; install it with pip install -e ."
    )
