"""Real libraries of NCCL, out of their wheels: what rules and grammar are held against."""
