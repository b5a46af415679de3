"""profile: torch.profiler in ranks of a live run, at the same steps; and summaries of existing traces."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...runners.node.local_agent import with_link
from ...runners.profile import profiling, traces
from ...runners.profile.profiling import Fetched, RankTrace
from ...runners.profile.traces import TraceError, TraceSummary
from ...runners.reports.profile_report import NOTHING, Profiled, checked, profiled, report, values
from ...runners.run import run_directories
from ...runners.run.errors import NoSuchRunError, RunError
from ...runners.run.model import CommandDone, Profile
from ...runners.run.wire.client import new_id
from ..rows.glyphs import plain
from ..rows.profiles import answer_rows, profile_rows
from ..terminal import answer, complain

MOST_FILES = profiling.MOST_RANKS
"""Maximum number of traces per summary."""
_RANK = re.compile(r"rank-?(\d{1,6})\D")


def profile(options: argparse.Namespace) -> int:
    """Record, fetch and print a profile; of a folder or a file only print the summary. Raises RunError."""
    ranks = tuple(sorted(set(options.rank)))
    try:
        run_directories.resolve(options.run)
    except NoSuchRunError as error:
        if options.run is None or not Path(options.run).exists():
            raise
        return _of_files(Path(options.run), ranks, options.json, str(error))
    out = None if options.out is None else Path(options.out)
    command = checked(Profile(new_id(), ranks, options.steps, options.timeout), out)
    done, answered, fetched = asyncio.run(
        with_link(options.run, lambda entry, link: profiled(entry, link, command, out))
    )
    return _show(done, answered, fetched, options.json)


def _show(done: CommandDone, answered: Mapping[int, RankTrace], fetched: Fetched, as_json: bool) -> int:
    document = report(done, answered, fetched)
    if done.ok or as_json:
        lines = [f"{profiling.title(answered)}.", "", *plain(answer_rows(done, answered, fetched))]
        answer(as_json, document, lines)
    if not done.ok:
        complain(done.text)
    return 0 if done.ok and document["files"] else 1


# --- existing traces


def _of_files(path: Path, ranks: tuple[int, ...], as_json: bool, no_run: str) -> int:
    """Print the summary of a folder's traces, or of one file. Raises RunError."""
    files = _traces(path)
    if not files:
        raise RunError(f"{path} has no trace (*.json or *.json.gz), and {no_run}")
    if len(files) > MOST_FILES:
        raise RunError(
            f"{path} has {len(files)} traces: name one of them, or a folder with up to {MOST_FILES}"
        )
    summaries, problems = _summarized(files, ranks)
    if summaries or as_json:
        document: Profiled = {
            "ok": bool(summaries),
            "text": "" if summaries else NOTHING,
            "folder": str(path),
            "files": {},
            **values(summaries, problems),
        }
        answer(as_json, document, plain(profile_rows(summaries, problems, [])))
    if not summaries:
        complain("; ".join(problems.values()) or f"{path} has no trace of these ranks")
    return 0 if summaries else 1


def _summarized(
    files: Sequence[Path], ranks: Sequence[int]
) -> tuple[dict[int, TraceSummary], dict[int, str]]:
    """Return the summary of each rank, or why its file cannot be read; `ranks` limits the summaries."""
    summaries: dict[int, TraceSummary] = {}
    problems: dict[int, str] = {}
    for number, file in enumerate(files):
        try:
            summary = traces.summarized(traces.read(file))
            rank = _rank_of(file, summary, number, summaries)
            if not ranks or rank in ranks:
                summaries[rank] = summary
        except TraceError as error:
            problems[_rank_of(file, None, number, {**summaries, **problems})] = str(error)
    return summaries, problems


def _traces(path: Path) -> list[Path]:
    """Return the traces of a folder, or the file itself. Raises RunError."""
    if not path.is_dir():
        return [path]
    try:
        return sorted(file for file in path.iterdir() if file.name.endswith((".json", ".json.gz")))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None


def _rank_of(file: Path, summary: TraceSummary | None, number: int, taken: Mapping[int, object]) -> int:
    """Return the rank in the trace, else in the file's name, else the file's index; made unique among `taken`."""
    match = _RANK.search(file.name)
    rank = summary.rank if summary is not None and summary.rank is not None else None
    rank = int(match[1]) if rank is None and match else rank
    rank = number if rank is None or rank < 0 else rank
    while rank in taken:
        rank += 1
    return rank
