"""A module that breaks when it is imported."""

CLASSES = {"cat": 0, "dog": 1}
FIRST = CLASSES["bird"]
