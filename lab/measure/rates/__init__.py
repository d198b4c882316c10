"""What chips and links were measured to do, and what is known of those that nobody has measured."""
