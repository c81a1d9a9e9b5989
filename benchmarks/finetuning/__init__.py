"""What fine-tuning reaches: a list of runs, the program that runs them, and the page made of their results."""
