"""The card of a run: script, place, directories, and the checkpoint that a restart would load. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rich.cells import cell_len

from ...presets.plurals import plural
from ...presets.sanitize import clean_text
from ...runners.diagnosis.applied_preset import check_applied
from ...runners.run.formatting import NA, elapsed, listed, size_text, time_of_day
from ...runners.run.model import Checkpoint
from ...runners.run.nccl_reach import uses_gloo
from ...runners.run.state import RunState
from ...runners.telemetry.progress import progress, source_text
from .attempt_rule import environment_changes
from .frame import Frame, names
from .glyphs import Cell, Row, fit, labelled
from .header import checkpoint_age

_LABEL = 13


def card_rows(frame: Frame, width: int, places: Mapping[str, str] | None = None) -> list[Row]:
    """Return labels and texts, two short ones in a row; `places` are its files on the cockpit's machine."""
    items = [(label, clean_text(text)) for label, text in _lines(frame, places or {}) if text]
    half = (width - 1) // 2
    rows: list[Row] = []
    at = 0
    while at < len(items):
        (label, text), after = items[at], items[at + 1 : at + 2]
        if after and all(_LABEL + cell_len(each) < half for _, each in (items[at], *after)):
            label_after, text_after = after[0]
            rows.append(
                (
                    _label(label),
                    (fit(text, half - _LABEL), "text"),
                    _label(label_after),
                    (text_after, "text"),
                )
            )
            at += 2
        else:
            rows += labelled(_label(label), text, width - 1)
            at += 1
    return rows


def _label(text: str) -> Cell:
    return f" {text}".ljust(_LABEL), "dim"


def _lines(frame: Frame, places: Mapping[str, str]) -> list[tuple[str, str]]:
    state = frame.state
    plan = state.plan
    hosts = [name for _, name in sorted(names(state).items())]
    return [
        ("script", plan.command if plan is not None else ""),
        ("preset", _preset(state)),
        ("on", listed([host for host in hosts if host])),
        ("environment", _environment(state, places.get("environment", ""))),
        ("directory", places.get("directory", "")),
        ("records in", places.get("records", "")),
        ("started", _started(state)),
        ("restarts", _restarts(state)),
        ("NCCL", _nccl(state)),
        ("checkpoint", _checkpoint(frame, state.checkpoint)),
        ("training", source_text(progress(state, frame.node_now(0)))),
    ]


def _preset(state: RunState) -> str:
    """Return its name, and which parts of the script or the ranks apply it."""
    plan = state.plan
    if plan is None or not plan.preset:
        return ""
    acted = check_applied(state)
    if acted is not None and acted.state != "unknown":
        return f"{plan.preset}: {acted.text}"
    if plan.obeys:
        return f"{plan.preset}: {plan.obeys}"
    return f"{plan.preset}: sets launcher flags and environment only; the script applies the rest itself"


def _environment(state: RunState, at_launch: str) -> str:
    """Return the variables that the user set at the launch, and those that restarts changed."""
    changed = [text for attempt in state.attempts if (text := environment_changes(attempt))]
    later = f"changed by restarts: {' '.join(changed)}" if changed else ""
    return "; ".join(part for part in (at_launch, later) if part)


def _started(state: RunState) -> str:
    """Return the start time, and the pids of agent and runner."""
    if not state.began:
        return ""
    pids = [
        f"{name} pid {pid}"
        for name, pid in (("agent", state.agent_pid), ("runner", state.runner_pid))
        if pid
    ]
    return "; ".join([time_of_day(state.began), *pids])


def _restarts(state: RunState) -> str:
    """Return failures that count against the limit, and requested restarts."""
    plan = state.plan
    if plan is None or not state.attempts:
        return ""
    used = (
        f"{state.failures} of {plan.restart_limit} after failures" if plan.restart_limit else "none allowed"
    )
    asked = state.attempt - 1 - state.failures
    return used + (f"; {plural(asked, 'time')} by request" if asked > 0 else "")


def _nccl(state: RunState) -> str:
    if uses_gloo(state):
        return ""
    versions = sorted({rank.nccl_version for rank in state.ranks.values() if rank.nccl_version})
    levels = sorted({rank.nccl_debug for rank in state.ranks.values() if rank.nccl_debug})
    parts = [", ".join(versions), f"NCCL_DEBUG {', '.join(levels)}" if levels else ""]
    return "; ".join(part for part in parts if part)


def _checkpoint(frame: Frame, saved: Checkpoint | None) -> str:
    """Return the newest complete checkpoint."""
    torn = sum(not each.complete for each in frame.state.checkpoints)
    parts = ["none seen"]
    if saved is not None:
        when = time_of_day(saved.at)
        if not frame.state.phase.ended:
            age = elapsed(saved.at, frame.node_now(0))
            when += f", {NA}" if age is None else f", {checkpoint_age(age)} ago"
        parts = [saved.path, when]
        parts += [f"step {saved.step:,}"] if saved.step is not None else []
        parts += [size_text(saved.size)] if saved.size is not None else []
    parts += [plural(torn, "torn one")] if torn else []
    return "; ".join(filter(None, parts))
