"""Values of launch options as people type them; each function raises ArgumentTypeError with a sentence."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from ..run.formatting import bytes_of_cap


def seconds(text: str) -> float:
    """Parse a duration in seconds. Raises ArgumentTypeError."""
    refusal = "is not a number of seconds: write 0 or more, as in 30 or 2.5"
    return real(text, lambda number: 0 <= number < 1e9, refusal)


def cap(text: str) -> int:
    """Parse a size in bytes, of 16 MiB or more; 0 for "off". Raises ArgumentTypeError."""
    size = bytes_of_cap(text)
    if size is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid log size: write 16MiB or more, as in 200MB, or off"
        )
    return size


def count(text: str) -> int:
    """Parse a non-negative whole number. Raises ArgumentTypeError."""
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number: write 0 or more, as in 3")
    return int(text)


def minutes(text: str) -> int | None:
    """Parse minutes; None for "off". Raises ArgumentTypeError."""
    if text == "off":
        return None
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) < 10**6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes: write 1 or more, or off")
    return int(text)


def real(text: str, fits: Callable[[float], bool], refusal: str) -> float:
    """Parse a number that fits; other text becomes nan, which never fits. Raises ArgumentTypeError."""
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not fits(number):
        raise argparse.ArgumentTypeError(f"{text!r} {refusal}")
    return number


PARSERS: Mapping[str, Callable[[str], Any]] = {
    "": str,
    "cap": cap,
    "count": count,
    "minutes": minutes,
    "port": int,
    "seconds": seconds,
}
"""`LaunchOption.parse` → what reads the value of the option."""
