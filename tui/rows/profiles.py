"""What a profile says, as rows and as values: each rank's time, the slowest rank, the operators. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...presets.sanitize import clean_text
from ...runners import profiling
from ...runners.formatting import NA, plural, spans_text
from ...runners.model import CommandDone
from ...runners.profiling import Fetched, RankTrace
from ...runners.traces import OperatorTime, TraceSummary
from .glyphs import Row, clip, table

SHOWN = 10
"""Operators that are shown; --json has more."""
APART = 0.05
"""Of a step: a smaller difference between ranks makes none of them the slowest."""
VIEWERS = "https://ui.perfetto.dev opens each, and HTA the folder"
NOTHING = "no rank has a trace that could be summed up"


def slowest(summaries: Mapping[int, TraceSummary]) -> tuple[int, int] | None:
    """The rank with the most time of its own a step, and the one with the least; None where they are alike."""
    if len(summaries) < 2:
        return None
    of_step = {rank: summary.own for rank, summary in summaries.items()}
    most, least = max(of_step, key=lambda rank: of_step[rank]), min(of_step, key=lambda rank: of_step[rank])
    step = max(summary.seconds / max(1, len(summary.steps)) for summary in summaries.values())
    return (most, least) if of_step[most] - of_step[least] > APART * step else None


def merged(of_rank: Sequence[Sequence[OperatorTime]]) -> list[OperatorTime]:
    """The same operators of several ranks together, those with the most time first."""
    sums: dict[str, list[float]] = {}
    for operators in of_rank:
        for each in operators:
            both = sums.setdefault(each.name, [0.0, 0])
            both[0] += each.seconds
            both[1] += each.calls
    most = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))
    return [OperatorTime(name, seconds, int(calls)) for name, (seconds, calls) in most]


def profile_rows(
    summaries: Mapping[int, TraceSummary],
    problems: Mapping[int, str],
    lines: Sequence[str] = (),
    width: int = 1 << 20,
) -> list[Row]:
    """All of it, top down: ranks, the slowest, operators, collectives, what is missing, and further `lines`.

    Tables are cut at `width` columns, sentences are whole.
    """
    rows = [*_ranks(summaries, width), _line(_slowest(summaries))] if summaries else []
    steps = sum(max(1, len(summary.steps)) for summary in summaries.values())
    seconds = sum(summary.seconds for summary in summaries.values())
    for noun, of_rank in (
        ("operator", [summary.operators for summary in summaries.values()]),
        ("collective", [summary.collectives for summary in summaries.values()]),
    ):
        rows += _operators(noun, merged(of_rank), steps, seconds, width)
    below = [*(f"Rank {rank}: {why}." for rank, why in sorted(problems.items())), *lines]
    return [*rows, *[()] * bool(rows and below), *map(_line, below)]


def _line(text: str) -> Row:
    return ((clean_text(text), "text"),)


def _table(rows: Sequence[tuple[str, ...]], right: frozenset[int], width: int) -> list[Row]:
    return [clip(_line(line), width) for line in table(rows, right)]


def trace_lines(folder: str, count: int) -> list[str]:
    """Where the traces are, and what opens them."""
    return [f"{plural(count, 'trace')} in {folder}: {VIEWERS}."] if folder and count else []


def _ranks(summaries: Mapping[int, TraceSummary], width: int) -> list[Row]:
    rows: list[tuple[str, ...]] = [
        ("rank", "a step", "computes", "communicates", "not overlapped", "idle", "of its own")
    ]
    rows += [_rank(rank, summary) for rank, summary in sorted(summaries.items())]
    kinds = {summary.gpu for summary in summaries.values()}
    where = {frozenset([True]): "GPU", frozenset([False]): "CPU, as no kernel ran on a GPU"}.get(
        frozenset(kinds), "GPU, of some ranks of the CPU"
    )
    of = _line(f"Shares of the time of the {where}.")
    return [*_table(rows, frozenset(range(len(rows[0]))), width), of, ()]


def _rank(rank: int, summary: TraceSummary) -> tuple[str, ...]:
    steps = max(1, len(summary.steps))
    shares = shares_of(summary)
    return (
        str(rank), time_text(summary.seconds / steps) if summary.steps else NA, _share(shares["compute"]),
        _share(shares["communication"]), _share(shares["not_overlapped"]), _share(shares["idle"]),
        time_text(summary.own) if summary.steps else NA,
    )  # fmt: skip


def time_text(seconds: float) -> str:
    """The time of an operator or a step: "0.04 ms", "12.3 ms", "1.24 s"."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1000 * seconds:.{2 if seconds < 0.01 else 1 if seconds < 0.1 else 0}f} ms"


def shares_of(summary: TraceSummary) -> dict[str, float | None]:
    """Of the steps' time; "not_overlapped" of the communication, None without any."""
    seconds = summary.seconds

    def of(part: float) -> float | None:
        return part / seconds if seconds > 0 else None

    talks = summary.communication
    return {
        "compute": of(summary.compute),
        "communication": of(talks),
        "not_overlapped": summary.exposed / talks if talks > 0 else None,
        "exposed": of(summary.exposed),
        "idle": of(summary.idle),
    }


def _share(value: float | None) -> str:
    return NA if value is None else f"{value:.0%}"


def _slowest(summaries: Mapping[int, TraceSummary]) -> str:
    if len(summaries) < 2:
        return "The slowest rank: n/a, as it takes two ranks to compare."
    both = slowest(summaries)
    if both is None:
        who = spans_text("rank", summaries).capitalize()
        return f"No rank is slowest: {who} take the same time a step, within {APART:.0%}."
    most, least = both
    waits = "waits for it" if summaries[least].exposed > 0 else "is the fastest"
    own, others = time_text(summaries[most].own), time_text(summaries[least].own)
    return f"Slowest is rank {most}: {own} of its own a step, and rank {least}, which {waits}, {others}."


def _operators(
    noun: str, operators: Sequence[OperatorTime], steps: int, seconds: float, width: int
) -> list[Row]:
    if not operators:
        return []
    rows: list[tuple[str, ...]] = [("time a step", "share", "calls a step", noun)]
    for each in operators[:SHOWN]:
        share = _share(each.seconds / seconds if seconds > 0 else None)
        rows.append((time_text(each.seconds / steps), share, f"{each.calls / steps:.3g}", each.name))
    if noun == "collective":  # several may be under way at a time: their sum is no share of anything
        rows = [(row[0], *row[2:]) for row in rows]
    return [(), *_table(rows, frozenset(range(len(rows[0]) - 1)), width)]


def values(summaries: Mapping[int, TraceSummary], problems: Mapping[int, str]) -> dict[str, Any]:
    """The same for --json; times in seconds."""
    both = slowest(summaries)
    ranks = [
        {
            "rank": rank,
            "gpu": summary.gpu,
            "first_step": summary.first,
            "steps": list(summary.steps),
            "seconds": summary.seconds,
            "compute": summary.compute,
            "communication": summary.communication,
            "exposed": summary.exposed,
            "idle": summary.idle,
            "own_step": summary.own if summary.steps else None,
            "shares": shares_of(summary),
        }
        for rank, summary in sorted(summaries.items())
    ]
    return {
        "ranks": ranks,
        "slowest": None if both is None else both[0],
        "operators": _values([summary.operators for summary in summaries.values()]),
        "collectives": _values([summary.collectives for summary in summaries.values()]),
        "missing": {str(rank): why for rank, why in sorted(problems.items())},
    }


def _values(of_rank: Sequence[Sequence[OperatorTime]]) -> list[dict[str, Any]]:
    return [{"name": each.name, "seconds": each.seconds, "calls": each.calls} for each in merged(of_rank)]


def answer_rows(
    done: CommandDone, answered: Mapping[int, RankTrace], fetched: Fetched, width: int = 1 << 20
) -> list[Row]:
    """All that came of a profile."""
    summaries = {rank: its.summary for rank, its in answered.items() if its.summary is not None}
    lines = trace_lines(fetched.folder, len(answered) - len(fetched.missing))
    lines += [f"Not all have a trace: {done.text}"] if "; " in done.text else []
    return profile_rows(summaries, profiling.problems(answered, fetched), lines, width)
