"""Text that would act on a terminal."""

from __future__ import annotations

import re

EVIL = "\u001b]52;c;aGk=\u0007fin\u001b[2J\u202e\u009b31m\u200b\ufeff\U000e0041\u2066\u007f\ufff9"
"""The clipboard, a cleared screen, 8-bit colour, text turned around, text without width."""
ACTS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def harmless(shown: str) -> None:
    """Assert that nothing in it acts on a terminal, and that it is no traceback."""
    assert not ACTS.search(shown), (ACTS.findall(shown), shown)
    assert "Traceback" not in shown, shown
