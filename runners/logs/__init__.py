"""Log files of a run: paths, windows, levels and times of lines, search, size caps, and merging by time."""
