"""Request of a profile, and its report: the content of `distui profile --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from ..node.local_agent import check_ranks
from ..node.run_following import history
from ..profile import profiling, rank_traces
from ..profile.rank_traces import Fetched, RankTrace
from ..profile.trace_summary import OperatorTime, TraceSummary
from ..run import run_directories
from ..run.commands import Profile
from ..run.errors import RunError
from ..run.model import CommandDone
from ..run.wire.client import Link

APART = 0.05
"""Fraction of a step: with a smaller difference between ranks, none is the slowest."""


def checked(command: Profile, out: Path | None) -> Profile:
    """Return the command if it is valid and would replace no file in the folder `out`. Raises RunError."""
    if why := profiling.refusal(command, len(command.ranks)):
        raise RunError(why)
    there = None if out is None else next(iter(sorted(out.glob("rank-*.json.gz"))), None)
    if there is not None:
        raise RunError(f"{there} is there already: name another directory")
    return command


async def profiled(
    entry: run_directories.Entry, link: Link, command: Profile, out: Path | None
) -> tuple[CommandDone, dict[int, RankTrace], Fetched]:
    """Record a profile, and fetch the traces to `out` or to this machine. Raises RunError and LinkError."""
    state = await history(link)
    if not state.phase.ended:
        check_ranks(state, command.ranks)
    done = await link.send(command)
    answered = rank_traces.traces(done)
    if entry.record.kind == "node":
        entry = run_directories.resolve(entry.record.whole)
    if out is None and entry.record.kind != "hub":
        return done, answered, rank_traces.here(entry.path, answered)
    folder = rank_traces.folder_of(entry.path, answered) if out is None else out
    return done, answered, await rank_traces.fetched(link.send, answered, folder)


class ProfiledRank(TypedDict):
    rank: int
    gpu: bool
    first_step: int | None
    steps: list[float]
    seconds: float
    compute: float | None
    communication: float | None
    exposed: float | None
    idle: float | None
    own_step: float | None
    shares: dict[str, float | None] | None


class TraceValues(TypedDict):
    """Values from traces."""

    ranks: list[ProfiledRank]
    slowest: int | None
    operators: list[OperatorTime]
    collectives: list[OperatorTime]
    missing: dict[str, str]


class Profiled(TraceValues):
    """JSON of `profile`."""

    ok: bool
    text: str
    folder: str | None
    files: dict[str, str]


def report(done: CommandDone, answered: Mapping[int, RankTrace], fetched: Fetched) -> Profiled:
    """Report of a profile; times in seconds."""
    summaries = {rank: its.summary for rank, its in answered.items() if its.summary is not None}
    lost = dict(fetched.missing)
    files = {
        str(rank): str(Path(fetched.folder) / f"rank-{rank}.json.gz")
        for rank in answered
        if fetched.folder and rank not in lost
    }
    said = values(summaries, _without(done, answered) | rank_traces.problems(answered, fetched))
    return {"ok": done.ok, "text": done.text, "folder": fetched.folder or None, "files": files, **said}


def _without(done: CommandDone, answered: Mapping[int, RankTrace]) -> dict[int, str]:
    """Ranks without a trace, and the reasons."""
    return {
        rank: clause.text.removeprefix("{ranks}: ")
        for clause in done.clauses
        for rank in clause.ranks
        if rank not in answered
    }


# --- values from traces


def slowest(summaries: Mapping[int, TraceSummary]) -> tuple[int, int] | None:
    """Ranks with the most and the least own time per step; None if they are similar."""
    if len(summaries) < 2:
        return None
    of_step = {rank: summary.own for rank, summary in summaries.items()}
    most, least = max(of_step, key=lambda rank: of_step[rank]), min(of_step, key=lambda rank: of_step[rank])
    step = max(summary.seconds / max(1, len(summary.steps)) for summary in summaries.values())
    return (most, least) if of_step[most] - of_step[least] > APART * step else None


def merged(of_rank: Sequence[Sequence[OperatorTime]]) -> list[OperatorTime]:
    """Sum the operators of several ranks by name, those with the most time first."""
    sums: dict[str, list[float]] = {}
    for operators in of_rank:
        for each in operators:
            both = sums.setdefault(each.name, [0.0, 0])
            both[0] += each.seconds
            both[1] += each.calls
    most = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))
    return [OperatorTime(name, seconds, int(calls)) for name, (seconds, calls) in most]


def shares_of(summary: TraceSummary) -> dict[str, float | None]:
    """Fractions of the steps' time; "not_overlapped" is a fraction of the communication, None without any."""
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


def values(summaries: Mapping[int, TraceSummary], problems: Mapping[int, str]) -> TraceValues:
    """Values of the traces for --json; times in seconds."""
    both = slowest(summaries)
    ranks: list[ProfiledRank] = [
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
        "operators": _merged_json([summary.operators for summary in summaries.values()]),
        "collectives": _merged_json([summary.collectives for summary in summaries.values()]),
        "missing": {str(rank): why for rank, why in sorted(problems.items())},
    }


def _merged_json(of_rank: Sequence[Sequence[OperatorTime]]) -> Any:
    return msgspec.to_builtins(merged(of_rank))
