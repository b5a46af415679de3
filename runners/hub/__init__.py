"""The hub: a daemon where the user sits, one a run on several nodes. It holds a link to each and makes them one run."""
