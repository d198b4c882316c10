"""What an experiment, a question and a training are, where they are found, and how they are run."""
