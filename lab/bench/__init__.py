"""Times of collectives on attached devices: chains of calls in one compiled program, with alpha and beta fitted to them."""
