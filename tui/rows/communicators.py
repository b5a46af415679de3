"""NCCL's communicators as cards: size, stages, late ranks, channels. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ...presets.plurals import plural
from ...runners.diagnosis.nccl_facts import STAGES, Communicator, Init, NcclFacts
from ...runners.run.formatting import NA, spans_text
from . import glyphs
from .glyphs import Cell, Row
from .statements import StatementRow, field, headed

READY = STAGES.index("complete")

CARDS = 6
"""Maximum number of shown communicators, including the chosen one; the others are counted."""


def by_size(facts: NcclFacts) -> list[Communicator]:
    """Return communicators in the order of the screen: the largest first."""
    return sorted(facts.communicators, key=lambda comm: -(comm.nranks or 0))


def chosen_of(facts: NcclFacts, wanted: str | None) -> Communicator | None:
    """Return the communicator of this id; else one that is not ready, else the largest."""
    ordered = by_size(facts)
    named = next((comm for comm in ordered if comm.id == wanted), None)
    late = next((comm for comm in ordered if late_ranks(comm) or missing(comm)), None)
    return named or late or next(iter(ordered), None)


def host_of(comm: Communicator) -> dict[int, str]:
    """Map each rank to its host, if that was logged."""
    return {rank: host for host, ranks in comm.hosts.items() for rank in ranks}


def hosts_in_order(comm: Communicator) -> list[str]:
    """Return the hosts by their lowest rank."""
    return sorted((host for host in comm.hosts if comm.hosts[host]), key=lambda host: min(comm.hosts[host]))


def late_ranks(comm: Communicator) -> dict[str, tuple[int, ...]]:
    """Map each stage to the ranks that are not ready although others are; {} if all are equal."""
    reached = [_stage(stage) for stage in comm.stages.values()]
    if not reached or max(reached) < READY:
        return {}
    late: dict[str, list[int]] = {}
    for rank, stage in sorted(comm.stages.items()):
        if _stage(stage) < READY or stage == "aborted":
            late.setdefault(stage, []).append(rank)
    return {stage: tuple(ranks) for stage, ranks in late.items()}


def missing(comm: Communicator) -> tuple[int, ...]:
    """Return ranks that appear in no log line; () if no rank does."""
    if comm.nranks is None or not comm.stages:
        return ()
    return tuple(rank for rank in range(comm.nranks) if rank not in comm.stages)


def _stage(stage: str) -> int:
    return STAGES.index(stage) if stage in STAGES else 0


def slowest(comm: Communicator) -> Init | None:
    """Return the rank with the longest init."""
    return max(comm.inits, key=lambda init: init.seconds, default=None)


def transports(comm: Communicator) -> dict[str, int]:
    """Map each transport to its number of pairs, as far as they are stored; the most frequent first."""
    kinds: dict[tuple[int, int], list[str]] = {}
    for pair in comm.pairs:
        kinds.setdefault((pair.source, pair.target), []).append(pair.kind)
    return dict(Counter(" and ".join(sorted(its)) for its in kinds.values()).most_common())


def communicator_name(comm: Communicator) -> str:
    """Return its id, or a text that it has none."""
    return comm.id or "of no named communicator"


def communicator_rows(facts: NcclFacts, chosen: Communicator, width: int) -> list[StatementRow]:
    """Return one card each; the chosen communicator is marked and shows all its facts."""
    ordered = by_size(facts)
    shown = _with_card(ordered, chosen)
    rows: list[StatementRow] = []
    left: list[Communicator] = []
    for comm in ordered:
        if comm in shown:
            rows += communicator_card(facts, comm, width, comm is chosen, len(ordered) > 1)
        else:
            left.append(comm)
    if left:
        sizes = Counter(plural(comm.nranks, "rank") if comm.nranks else NA for comm in left)
        summary = ", ".join(f"{count} of {size}" for size, count in sizes.items())
        rows.append(StatementRow(((f"  … {len(left)} more, all alike in their stages: {summary}", "dim"),)))
    return rows


def _with_card(ordered: Sequence[Communicator], chosen: Communicator) -> list[Communicator]:
    """Return at most CARDS communicators: the chosen one, those with late or missing ranks, then the largest."""
    wanted = [comm for comm in ordered if late_ranks(comm) or missing(comm) or comm is chosen]
    shown = [*wanted, *(comm for comm in ordered if comm not in wanted)][:CARDS]
    if chosen not in shown:
        shown[-1] = chosen
    return shown


def communicator_card(
    facts: NcclFacts, comm: Communicator, width: int, chosen: bool = True, several: bool = False
) -> list[StatementRow]:
    """Return name, size, stages and late ranks; the chosen one, marked among several, also has all other facts."""
    line = facts.raw.get(f"comm:{comm.id}")
    late, absent = late_ranks(comm), missing(comm)
    glyph, style = _state_mark(comm)
    mark = glyphs.MARK if chosen and several else " "
    head: Row = (
        (f"{glyph} ", style),
        (communicator_name(comm), "head"),
        (f" {mark}", "accent"),
        (_shape(comm), "text"),
    )
    rows = headed(head, "stages", _counts(comm), width, line)
    for stage, ranks in late.items():
        rows += field(
            "behind", f"{spans_text('rank', ranks)}: {stage}, not complete", "", True, width, line
        )
    if absent:
        rows += field("missing", f"no line names {spans_text('rank', absent)}", "", True, width, line)
    if chosen:
        for label, text in _facts_of(comm):
            rows += field(label, text, "", False, width, line) if text else []
    return rows


def _state_mark(comm: Communicator) -> Cell:
    if not any(_stage(stage) >= READY for stage in comm.stages.values()):
        return glyphs.STALE, "warn"
    return (glyphs.WARN, "warn") if late_ranks(comm) or missing(comm) else (glyphs.OK, "ok")


def _shape(comm: Communicator) -> str:
    if comm.nranks is None:
        return ""
    size = f"  {plural(comm.nranks, 'rank')}"
    if comm.nnodes is not None:
        return f"{size} on {plural(comm.nnodes, 'node')}"
    return f"{size} on {plural(len(comm.hosts), 'host')} seen" if comm.hosts else size


def _counts(comm: Communicator) -> str:
    if comm.nranks is None:
        return ""
    counts = Counter(comm.stages.values())
    return ", ".join(f"{counts[stage]} {stage}" for stage in STAGES if counts[stage]) or f"stages {NA}"


def _facts_of(comm: Communicator) -> list[tuple[str, str]]:
    channels = [f"{number} {kind}" for kind, number in comm.channels.items() if number]
    channels += [plural(comm.ring_count, "ring")] if comm.ring_count else []
    channels += [plural(comm.trees, "tree")] if comm.trees else []
    channels += ["NVLink SHARP"] if comm.nvls else []
    return [
        ("init", _init_text(slowest(comm))),
        ("channels", ", ".join(channels)),
        ("pairs", ", ".join(f"{count:,} over {kind}" for kind, count in transports(comm).items())),
        ("tuned", _counted(comm.tuning)),
        ("called", _counted(comm.collectives)),
    ]


def _init_text(worst: Init | None) -> str:
    """Return the time of the slowest rank, and its phases."""
    if worst is None:
        return ""
    phases = sorted(worst.phases.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{name} {value:.2f}" for name, value in phases if value)
    return f"{worst.seconds:.2f} s, rank {worst.rank} the slowest{': ' + parts if parts else ''}"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,} ×" for name, count in Counter(counts).most_common(6))
