"""What one device holds of a training step, term by term: arguments, and what the fullest moment adds (Ch. 19)."""
