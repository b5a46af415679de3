"""Detect logs that have reached the file size limit (`ulimit -f`), beyond which lines are lost."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterable, Mapping

from ...presets.finding import Finding
from ..inrank.known_causes import FILE_LIMIT
from ..run.formatting import agreeing, size_text, spans_text
from ..run.log_files import parse_file_id
from .runner_process import ServedRun

NAME = "file-limit"


def limit_of(pid: int) -> int | None:
    """Return a process's file size limit in bytes, for pid 0 this one's. None for no limit and for an exited process."""
    with contextlib.suppress(OSError):
        limit = resource.prlimit(pid, resource.RLIMIT_FSIZE)[0]
        return None if limit == resource.RLIM_INFINITY else limit
    return None


def finding_of(
    sizes: Mapping[str, int], attempt: int, limits: Mapping[int, int], node: int
) -> Finding | None:
    """Return a finding on an attempt's logs, or None if all are below their limits. Pure.

    `sizes`: bytes by file. `limits`: by rank.
    """
    full = dict[int, str]()
    for name, size in sizes.items():
        file = parse_file_id(name)
        if file is None or file.rank is None or file.attempt != attempt or file.rank not in limits:
            continue
        if size >= limits[file.rank]:
            full[file.rank] = name
    if not full:
        return None
    ranks = sorted(full)
    allowed = size_text(min(limits[rank] for rank in ranks))
    logs, have = agreeing(ranks, "log", "logs"), agreeing(ranks, "has", "have")
    return Finding(
        NAME,
        "error",
        f"the {logs} of {spans_text('rank', ranks)} {have} reached the limit on the size of a file ({allowed}): "
        "further lines are lost, the run goes on",
        rank=ranks[0] if len(ranks) == 1 else None,
        ranks=tuple(ranks),
        node=node,
        remedy=FILE_LIMIT,
        evidence=tuple(f"{full[rank]} has {sizes[full[rank]]:,} bytes" for rank in ranks[:4]),
    )


class FileLimits:
    """Compares the logs of a run's ranks with their limits."""

    def __init__(self, run: ServedRun) -> None:
        self._run = run
        self._limits: dict[int, int] = {}
        """Limits by rank. An exited rank keeps its last one."""

    def update(self, pids: Iterable[tuple[int, int]]) -> None:
        """Read the limits of running ranks, given as (rank, pid)."""
        for rank, pid in pids:
            limit = limit_of(pid)
            if limit is not None:
                self._limits[rank] = limit

    def check(self) -> None:
        """Raise or clear the finding for the reported sizes."""
        if not self._limits:
            return
        state = self._run.state
        finding = finding_of(state.log_sizes, state.attempt, self._limits, self._run.node)
        held = [each for each in state.findings.values() if each.id == NAME and each.node == self._run.node]
        for each in held:
            if finding is None or each.ranks != finding.ranks:
                self._run.findings.clear(NAME, rank=each.rank, node=each.node)
        if finding is not None and not any(each.ranks == finding.ranks for each in held):
            self._run.findings.raise_once(finding)
