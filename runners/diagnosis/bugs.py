"""A bug of distui's own, where it must end nothing and must be seen."""

from __future__ import annotations

import traceback

from ..model import Finding


def told(error: BaseException, name: str, what: str, node: int | None = None) -> Finding:
    """The finding `name` about it, a sentence that begins with `what`; the traceback goes into the process's log."""
    traceback.print_exception(error)
    text = f"{what}: {type(error).__name__}: {error}"
    return Finding(
        name, "warn", text, node=node, remedy="the traceback stands in agent.log; please report it"
    )
