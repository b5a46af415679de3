"""The agent: a torch-free daemon beside a run, one a node. It owns the journal, the socket and the clean-up."""
