"""The agent: a daemon without torch, one per node and run. It owns the journal, the socket and the clean-up."""
