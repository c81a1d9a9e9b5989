"""What fine-tuning reaches: a list of runs, the program that makes them, and the page of their results."""
