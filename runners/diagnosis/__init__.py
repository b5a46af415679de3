"""Findings: from the logs of NCCL and torch (lines → statements → findings), and from a run's state (detectors).

Text and state in, values out. Only `log_sources` opens logs, and only `rank_dumps.SourceLines` reads source files.
"""
