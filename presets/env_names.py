"""Names of environment variables that no launch and no restart may set.

Limited to Python 3.9 and its standard library, because runners/inrank loads this file.
"""

from __future__ import annotations

from collections.abc import Mapping

PER_RANK = frozenset(("NCCL_DEBUG_FILE", "TORCHELASTIC_ERROR_FILE"))
"""The runner sets a different value per rank."""
_TEXT = """
    RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME
    MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID
    TORCHELASTIC_USE_AGENT_STORE
"""
LAUNCHER_OWN = frozenset(_TEXT.split())
"""The launcher computes these per rank."""


def refusal(name: str, value: str) -> str:
    """Return why no rank can get this variable from the user, as a sentence; "" if it can."""
    if not name.isprintable() or set(name) & {"=", " "} or name[:1] in ("", "-"):
        return f"{name!r} is not a valid name of an environment variable: take letters, digits and _"
    if "\0" in value:
        return f"the value of {name} holds a NUL, which no environment variable can"
    if name in LAUNCHER_OWN:
        return f"{name} is computed for each rank by the launcher: leave it out"
    if name.startswith("DISTUI_"):
        return f"{name} is distui's own: leave it out; a preset's fields set it"
    return ""


def first_refusal(wished: Mapping[str, str]) -> str:
    """Return the sentence about the first variable that no rank can get, or ""."""
    return next(filter(None, (refusal(name, value) for name, value in wished.items())), "")
