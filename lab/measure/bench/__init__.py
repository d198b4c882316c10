"""Times of collectives, taken on attached devices or estimated for GPUs that are not there: chains of calls in one
compiled program, with alpha and beta fitted."""
