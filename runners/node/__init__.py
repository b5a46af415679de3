"""Programs on a node of a run on several nodes, and the bundle that brings them there."""
