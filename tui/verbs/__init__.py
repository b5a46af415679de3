"""The verbs of the command line, one function each; every one returns the process's exit status."""
