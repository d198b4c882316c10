"""What is added to copies is collected there alone."""

collect_ignore = ["added"]
