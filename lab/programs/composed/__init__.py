"""One training step of a decoder from one `Configuration`: every parallelism on its axis of one mesh."""
