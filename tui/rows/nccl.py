"""The NCCL_DEBUG dialog as a value: what can be chosen, what is possible live, and why not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...presets.nccl import DEFAULT_SUBSYS, LEVELS, Subsystem, subsystems
from ...runners.model import SetNccl
from ...runners.state import RunState
from .cells import Row, fit, numbers

SECONDS: tuple[float | None, ...] = (None, 5.0, 10.0, 30.0, 60.0, 300.0)
"""How long a level can last, as the dialog offers it; `:nccl` takes any number."""

_HEAD = 3
"""Rows before the subsystems: level, duration, way."""


@dataclass(frozen=True, slots=True)
class Ways:
    """What is possible now."""

    live: bool
    text: str
    """One sentence for the dialog."""


def ways(state: RunState) -> Ways:
    """Live where every rank's NCCL allows it; an honest restart otherwise."""
    if state.plan is not None and state.plan.backend == "gloo":
        return Ways(False, "this run uses gloo: NCCL_DEBUG changes nothing here")
    if not state.ranks:
        return Ways(False, "no rank has started yet")
    unknown = [number for number, rank in state.ranks.items() if rank.nccl_live is None]
    refused = [number for number, rank in state.ranks.items() if rank.nccl_live is False]
    versions = sorted({rank.nccl_version for rank in state.ranks.values() if rank.nccl_version})
    version = f"NCCL {', '.join(versions)}" if versions else "this NCCL"
    if refused:
        where = f"ranks {numbers(refused)}"
        return Ways(False, f"{version} cannot change it live on {where} (2.24 or newer can): restart")
    if len(unknown) == len(state.ranks):
        return Ways(False, "no rank has loaded NCCL yet, or the hook is off: only a restart can change it")
    if unknown:
        return Ways(True, f"{version} changes it live; not yet known for ranks {numbers(unknown)}")
    return Ways(True, f"{version} changes it live on every rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclForm:
    """What is chosen so far."""

    level: str
    seconds: float | None = None
    restart: bool = False
    chosen: frozenset[str] = frozenset()
    known: tuple[Subsystem, ...] = ()
    """Subsystems that this NCCL has."""
    ways: Ways = field(default_factory=lambda: Ways(False, ""))
    ranks: tuple[int, ...] = ()
    """() means all."""


def begin(state: RunState, marked: frozenset[int]) -> NcclForm:
    """The dialog as it opens: the level that the ranks have now."""
    levels = {rank.nccl_debug for rank in state.ranks.values()}
    versions = {rank.nccl_version for rank in state.ranks.values() if rank.nccl_version}
    possible = ways(state)
    level = levels.pop() if len(levels) == 1 else None
    return NcclForm(
        level=level if level in LEVELS else "WARN",
        restart=not possible.live,
        known=subsystems(versions.pop() if len(versions) == 1 else None),
        ways=possible,
        ranks=tuple(sorted(marked & set(state.ranks))),
    )


def change(form: NcclForm, row: int, step: int) -> NcclForm:
    """The form after the value of a row was changed: the next (1) or previous (-1) one."""
    if row == 0:
        return replace(form, level=LEVELS[(LEVELS.index(form.level) + step) % len(LEVELS)])
    if row == 1:
        return replace(form, seconds=SECONDS[(SECONDS.index(form.seconds) + step) % len(SECONDS)])
    if row == 2:
        return replace(form, restart=not form.restart if form.ways.live else True)
    if row < _HEAD + len(form.known):
        return replace(form, chosen=form.chosen ^ {form.known[row - _HEAD].name})
    return form


def form_rows(form: NcclForm, width: int) -> list[Row]:
    """One row a choice; what is chosen is told by brackets, not by colour."""
    level = "  ".join(f"({'x' if name == form.level else ' '}) {name}" for name in LEVELS)
    seconds = "  ".join(f"({'x' if one == form.seconds else ' '}) {_lasting(one)}" for one in SECONDS)
    live = "(x) live  ( ) restart" if not form.restart else "( ) live  (x) restart"
    how = live if form.ways.live else "(x) restart of the worker group"
    rows: list[Row] = [
        ((fit("level", 7), "dim"), (level, "text")),
        ((fit("for", 7), "dim"), (seconds, "text")),
        ((fit("how", 7), "dim"), (how, "text")),
    ]
    for one in form.known:
        on = one.name in form.chosen
        head = f"[{'x' if on else ' '}] {fit(one.name, 10)} "
        rows.append(((head, "head" if on else "text"), (fit(one.text, max(10, width - len(head))), "dim")))
    return rows


def _lasting(seconds: float | None) -> str:
    return "ever" if seconds is None else f"{seconds:g}s"


def note(form: NcclForm) -> str:
    """Below the rows: what is possible, and what no choice of subsystems means."""
    chosen = "" if form.chosen else f"; no subsystem chosen: {DEFAULT_SUBSYS}"
    return f"{form.ways.text}{chosen}"


def command(form: NcclForm, command_id: str) -> SetNccl:
    """What the form asks for."""
    return SetNccl(
        id=command_id,
        level=form.level,
        subsys=",".join(one.name for one in form.known if one.name in form.chosen),
        ranks=form.ranks,
        seconds=form.seconds,
        restart=form.restart,
    )
