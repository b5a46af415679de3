"""Text that would act on a terminal, and what a program writes to one."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

EVIL = "\u001b]52;c;aGk=\u0007fin\u001b[2J\u202e\u009b31m\u200b\ufeff\U000e0041\u2066\u007f\ufff9"
"""The clipboard, a cleared screen, 8-bit colour, text turned around, text without width."""
ACTS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def terminal(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> tuple[int, str]:
    """How a program ends on a terminal of its own, and what it writes there, both streams."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        argv, stdin=slave, stdout=slave, stderr=slave, env={**env, "TERM": "xterm"}, cwd=cwd
    )
    os.close(slave)
    data = b""
    while True:
        try:
            data += os.read(master, 65536)
        except OSError:
            break
    code = process.wait()
    os.close(master)
    return code, data.decode("utf-8", "replace").replace("\r\n", "\n")


def harmless(shown: str) -> None:
    """Assert that nothing in it acts on a terminal, and that it is no traceback."""
    assert not ACTS.search(shown), (ACTS.findall(shown), shown)
    assert "Traceback" not in shown, shown
