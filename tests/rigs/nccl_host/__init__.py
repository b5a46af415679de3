"""NCCL's own host code, built from its source and driven without a GPU. See README.md."""
