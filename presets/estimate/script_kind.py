"""Determine what parallelizes the model in a script, for an advice, from its syntax tree. Pure."""

from __future__ import annotations

from ..script_facts import Names, parse, wraps
from ..script_support import inspect
from ..text_formats import Unreadable

MEGATRON = {"megatron", "nemo"}
"""Packages whose scripts take Megatron-LM's arguments."""


def kind_of_script(source: str | bytes | None) -> str:
    """Return the key of a ScriptKind, "unknown" for a file that parallelizes nothing. Never raises."""
    if source is None:
        return "unknown"
    try:
        script = parse(source)
    except Unreadable:
        return "unknown"
    if reader := inspect(None, source).reader:
        return reader
    if any(wraps(call.full)[0] == "ddp" for call in script.calls):
        return "ddp"
    packages = {module.split(".")[0] for module in Names(script.tree).imported}
    return "megatron" if packages & MEGATRON else "unknown"
