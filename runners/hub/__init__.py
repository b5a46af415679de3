"""The hub: a daemon on the user's machine, one per run on several nodes. It links to each node and merges them."""
