"""A profile as rows and as values: each rank's time, the slowest rank, the operators. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...presets.plurals import plural
from ...runners.profile import rank_traces
from ...runners.profile.rank_traces import Fetched, RankTrace
from ...runners.profile.trace_summary import OperatorTime, TraceSummary
from ...runners.reports.profile_report import APART, merged, shares_of, slowest
from ...runners.run.formatting import NA, spans_text
from ...runners.run.model import CommandDone
from .glyphs import Row, clip, or_na, table, text_row

SHOWN = 10
"""Maximum number of operators; --json has more."""
VIEWERS = "https://ui.perfetto.dev opens each, and HTA the folder"


def profile_rows(
    summaries: Mapping[int, TraceSummary],
    problems: Mapping[int, str],
    lines: Sequence[str] = (),
    width: int = 1 << 20,
) -> list[Row]:
    """Return ranks, the slowest rank, operators, collectives, missing traces, and further `lines`.

    Tables are cut at `width` columns, sentences are not.
    """
    rows = [*_ranks(summaries, width), text_row(_slowest(summaries))] if summaries else []
    steps = sum(max(1, len(summary.steps)) for summary in summaries.values())
    seconds = sum(summary.seconds for summary in summaries.values())
    for noun, of_rank in (
        ("operator", [summary.operators for summary in summaries.values()]),
        ("collective", [summary.collectives for summary in summaries.values()]),
    ):
        rows += _operators(noun, merged(of_rank), steps, seconds, width)
    below = [*(f"Rank {rank}: {why}." for rank, why in sorted(problems.items())), *lines]
    if rows and below:
        rows.append(())
    return [*rows, *map(text_row, below)]


def _table(rows: Sequence[tuple[str, ...]], right: frozenset[int], width: int) -> list[Row]:
    return [clip(text_row(line), width) for line in table(rows, right)]


def trace_lines(folder: str, count: int) -> list[str]:
    """Return the folder of the traces, and programs that open them."""
    return [f"{plural(count, 'trace')} in {folder}: {VIEWERS}."] if folder and count else []


def _ranks(summaries: Mapping[int, TraceSummary], width: int) -> list[Row]:
    rows: list[tuple[str, ...]] = [
        ("rank", "per step", "computes", "communicates", "exposed comm", "idle", "own work")
    ]
    rows += [_rank(rank, summary) for rank, summary in sorted(summaries.items())]
    kinds = {summary.gpu for summary in summaries.values()}
    shares = {
        frozenset([True]): "Percentages are GPU time.",
        frozenset([False]): "Percentages are CPU time: no GPU kernels ran.",
    }.get(frozenset(kinds), "Percentages are GPU time, of ranks without GPU kernels CPU time.")
    of = text_row(shares)
    return [*_table(rows, frozenset(range(len(rows[0]))), width), of, ()]


def _rank(rank: int, summary: TraceSummary) -> tuple[str, ...]:
    steps = max(1, len(summary.steps))
    shares = shares_of(summary)
    return (
        str(rank),
        time_text(summary.seconds / steps) if summary.steps else NA,
        _share(shares["compute"]),
        _share(shares["communication"]),
        _share(shares["not_overlapped"]),
        _share(shares["idle"]),
        time_text(summary.own) if summary.steps else NA,
    )


def time_text(seconds: float) -> str:
    """Return the time of an operator or a step: "0.04 ms", "12.3 ms", "1.24 s"."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    milliseconds = 1000 * seconds
    if seconds < 0.01:
        return f"{milliseconds:.2f} ms"
    return f"{milliseconds:.1f} ms" if seconds < 0.1 else f"{milliseconds:.0f} ms"


def _share(value: float | None) -> str:
    return or_na(value, "{:.0%}".format)


def _slowest(summaries: Mapping[int, TraceSummary]) -> str:
    if len(summaries) < 2:
        return "The slowest rank: n/a, as it takes two ranks to compare."
    both = slowest(summaries)
    if both is None:
        who = spans_text("rank", summaries).capitalize()
        return f"No rank is slowest: {who} take the same time per step, within {APART:.0%}."
    most, least = both
    waits = "waits" if summaries[least].exposed > 0 else "is the fastest"
    own, others = time_text(summaries[most].own), time_text(summaries[least].own)
    return f"Slowest: rank {most}, {own} of own work per step. Rank {least} needs {others} and {waits}."


def _operators(
    noun: str, operators: Sequence[OperatorTime], steps: int, seconds: float, width: int
) -> list[Row]:
    if not operators:
        return []
    rows: list[tuple[str, ...]] = [("time per step", "share", "calls per step", noun)]
    for each in operators[:SHOWN]:
        share = _share(each.seconds / seconds if seconds > 0 else None)
        rows.append((time_text(each.seconds / steps), share, f"{each.calls / steps:.3g}", each.name))
    if noun == "collective":  # collectives may overlap, so their sum is no share of the time
        rows = [(row[0], *row[2:]) for row in rows]
    return [(), *_table(rows, frozenset(range(len(rows[0]) - 1)), width)]


def answer_rows(
    done: CommandDone, answered: Mapping[int, RankTrace], fetched: Fetched, width: int = 1 << 20
) -> list[Row]:
    """Return all results of a profile."""
    summaries = {rank: its.summary for rank, its in answered.items() if its.summary is not None}
    lines = trace_lines(fetched.folder, len(answered) - len(fetched.missing))
    lines += [f"Not all have a trace: {done.text}"] if "; " in done.text else []
    return profile_rows(summaries, rank_traces.problems(answered, fetched), lines, width)
