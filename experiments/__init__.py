"""One question a file, named after its chapter; each has an `EXPERIMENT`."""
