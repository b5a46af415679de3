"""Findings: from the logs of NCCL and torch (lines → statements → findings), and from a run's state (detectors).

Text and state in, values out; only `reading` opens files.
"""
