"""Memory that ran out, or is about to: CUDA, host, cgroup."""

from __future__ import annotations

from collections.abc import Iterable

from ...model import Finding
from .view import View


def find(view: View) -> Iterable[Finding]:
    """See the module."""
    return ()
