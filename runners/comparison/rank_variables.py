"""The variables of a run's ranks for a comparison. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ...presets.secrets import MASK
from ..run.run_record import RunRecord
from ..run.state import RunState

PORTS = ("NCCL_RAS_ADDR", "MASTER_PORT")
"""Variables that end with a port, which differs between runs."""


def environment_facts(
    values: Mapping[str, str], hidden: Iterable[str], changes: Mapping[str, str | None], record: RunRecord
) -> dict[str, str]:
    """Return the ranks' variables without names of the run. A change to None removes a variable."""
    env: dict[str, str | None] = {**values, **dict.fromkeys(hidden, MASK), **changes}
    own = {name: text for name, text in env.items() if text is not None and not name.startswith("DISTUI_")}
    return {name: _without_run(name, text, record) for name, text in sorted(own.items())}


def _without_run(name: str, text: str, record: RunRecord) -> str:
    text = text.replace(record.run, "<run>")
    return re.sub(r"\d+$", "<port>", text) if name in PORTS else text


def changes_until(state: RunState, number: int | None) -> dict[str, str | None]:
    """Return the variables that restarts have changed, up to an attempt."""
    if number is None:
        return dict(state.changes)
    changed: dict[str, str | None] = {}
    for attempt in state.attempts:
        if attempt.number <= number:
            changed |= attempt.env_diff
    return changed
