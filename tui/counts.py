"""Whole numbers of options. Imports nothing of distui, so that `--help` costs nothing."""

from __future__ import annotations

import argparse


def count(text: str) -> int:
    """A number of things of an option. Raises ArgumentTypeError."""
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number: write 0 or more, as in 3")
    return int(text)
