"""What distui costs, measured side by side with doing without it: `python -m tests.bench`."""
