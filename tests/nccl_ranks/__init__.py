"""Real ranks on NCCL's own host code: what their logs must lead to."""
