"""NCCL's and torch's logs: lines → statements → findings. Text in, values out; only `reading` opens files."""
