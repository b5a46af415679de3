"""What stands in the way of a run, looked for on every node before it starts."""
