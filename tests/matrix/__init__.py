"""distui beside torch, frameworks and Pythons of several versions, each in an environment of its own."""
