"""Log files of a run: where they are, windows into them, an index by line, safe text, what lines mean."""
