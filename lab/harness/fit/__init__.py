"""Which changes make a training step fit its device's memory."""
