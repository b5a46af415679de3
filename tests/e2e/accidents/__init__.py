"""What goes wrong around a run, done for real: nothing is lost, nothing is left, and one sentence says it."""
