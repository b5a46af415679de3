"""What `distui diagnose` reads, and its answer as a JSON document."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from .. import run_directories
from ..errors import RunError
from ..logs import follow
from ..logs.log_files import list_files, parse_file_id, whole_id
from .lines import BLOCK, lines_in, lines_of
from .nccl_facts import CommunicatorPart, NodePart, RankPart
from .reading import Reading
from .verdict import LogFinding, Verdict

# -----------------------------------------------------------------------------------------------------------
# Where the logs are that a diagnosis reads: files, packed files, and the newest attempt of a run.


Named = tuple[str, Path]
"""What a file is called in findings, and where it is."""
PACKED = b"\x1f\x8b"


def read_all(files: Iterable[Named], stopped: Callable[[], bool] = bool) -> Reading:
    """Each file to its end, packed by gzip or not; pieces of one file follow one another. Raises RunError.

    `stopped` is asked at each block: once it says so, no more is read.
    """
    reading = Reading()
    for name, path in files:
        if not _fed(reading, name, packed_lines(path) if is_packed(path) else lines_of(path), stopped):
            break
    return reading


def read_run(files: Iterable[Named], stopped: Callable[[], bool] = bool) -> tuple[Reading, list[str]]:
    """The same of a run's logs, whatever bytes ranks wrote; and which cannot be read, a sentence each."""
    reading, unread = Reading(), list[str]()
    for name, path in files:
        try:
            if not _fed(reading, name, lines_of(path, refuse=False), stopped):
                break
        except RunError as error:
            unread.append(str(error).replace(str(path), name))
    return reading, unread


def _fed(reading: Reading, name: str, blocks: Iterator[list[str]], stopped: Callable[[], bool]) -> bool:
    """Whether it was read to its end."""
    if reading.files[-1:] != [name]:
        reading.open(name)
    for lines in blocks:
        if stopped():
            return False
        reading.feed(lines)
    return True


def of_run(entry: run_directories.Entry) -> list[Named]:
    """The logs of the newest attempt that are on this machine: the run's, its parts', and what a hub has kept."""
    paths: dict[str, list[Path]] = {file.id: [entry.path / file.id] for file in list_files(entry.path)}
    for part in run_directories.parts(entry.record.run) if entry.record.kind == "hub" else ():
        node = part.record.node
        paths |= {whole_id(file.id, node): [part.path / file.id] for file in list_files(part.path)}
    for kept, held in follow.pieces(entry.path).items():
        paths.setdefault(kept, [entry.path / follow.FOLDER / f"{kept}@{begin}" for begin in held])
    logs = [
        file for name in paths if (file := parse_file_id(name)) is not None and file.attempt is not None
    ]
    newest = max((file.attempt or 0 for file in logs), default=0)
    chosen = sorted((file for file in logs if file.attempt == newest), key=lambda file: file.order)
    return [(file.id, path) for file in chosen for path in paths[file.id]]


def is_packed(path: Path) -> bool:
    """Whether a file begins as gzip's do; what cannot be read is said by whoever reads it.

    A pipe is none: what was read of it is gone.
    """
    if not os.path.isfile(path):  # also of a name too long for a file
        return False
    try:
        with path.open("rb") as file:
            return file.read(2) == PACKED
    except OSError:
        return False


def packed_lines(path: Path) -> Iterator[list[str]]:
    """Lines of a text that gzip packed, some at a time; of a long one its beginning. Raises RunError."""

    def check(block: bytes) -> None:
        if b"\0" in block[:8192]:
            raise RunError(f"{path} holds no text: give the logs themselves")

    try:
        with gzip.open(path) as file:
            yield from lines_in(partial(file.read, BLOCK), check)
    except (OSError, EOFError, zlib.error) as error:
        raise RunError(f"{path} cannot be unpacked ({str(error).lower()}): have it copied again") from None


# -----------------------------------------------------------------------------------------------------------
# Everything that was found and read, as one JSON object. Pure.


RANKS_NAMED = 64
"""Most ranks of a communicator that are listed as behind the others."""


def document(reading: Reading, verdict: Verdict) -> dict[str, Any]:
    """For `--json`; docs/diagnosis.md says what each key holds. None is unknown."""
    first = verdict.first
    statements = reading.statements
    return {
        "files": reading.files,
        "lines": reading.lines,
        "nccl_lines": reading.nccl_lines,
        "nccl": sorted(statements.versions),
        "first_cause": None if first is None else {"id": first.id, "order": verdict.order},
        "victims": [
            {"id": victim.id, "count": victim.count, "ranks": list(victim.ranks)}
            for victim in verdict.victims
        ],
        "behind": list(verdict.behind),
        "findings": [_finding(finding) for finding in verdict.findings],
        "nodes": [
            _node(node, statements.sessions.ranks_on(node.host)) for node in statements.nodes.values()
        ],
        "communicators": [_communicator(part) for part in statements.sessions.all()],
        "communicators_left_out": statements.sessions.left_out,
    }


def _finding(finding: LogFinding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "severity": finding.severity,
        "role": finding.role,
        "layer": finding.layer,
        "confidence": finding.confidence,
        "rank": finding.rank,
        "node": node_of(finding),
        "host": finding.host or None,
        "ranks": list(finding.ranks),
        "hosts": list(finding.hosts),
        "count": finding.count,
        "text": finding.text,
        "remedy": finding.remedy,
        "env": dict(finding.env),
        "values": dict(finding.values),
        "seen": finding.seen,
        "evidence": [{"file": its.file, "line": its.line, "text": its.text} for its in finding.lines],
    }


def node_of(finding: LogFinding) -> int | None:
    """The node's number, where the first line stands in a log of a run."""
    log = parse_file_id(finding.lines[0].file) if finding.lines else None
    return None if log is None else log.node


def _node(node: NodePart, ranks: list[int]) -> dict[str, Any]:
    return {
        "host": node.host or None,
        "file": node.file or None,
        "nccl": sorted(node.versions),
        "ranks": ranks,
        "bootstrap": node.bootstrap or None,
        "interfaces": dict(node.interfaces),
        "hcas": dict(node.hcas),
        "networks": sorted(node.networks),
        "plugins": sorted(node.plugins),
        "env": dict(node.env),
    }


def _communicator(communicator: CommunicatorPart) -> dict[str, Any]:
    slowest = communicator.slowest()
    return {
        "id": communicator.id or None,
        "nranks": communicator.nranks,
        "nnodes": communicator.nnodes,
        "hosts": sorted(communicator.hosts),
        "ranks_seen": len(communicator.ranks),
        "stages": communicator.stages(),
        "behind": behind(communicator)[:RANKS_NAMED],
        "init": None
        if slowest is None
        else {"seconds": slowest.seconds, "rank": slowest.rank, "phases_s": dict(slowest.phases)},
        "rings": {str(channel): ring for channel, ring in sorted(communicator.rings.items())},
        "trees": communicator.trees or None,
        "channels": dict(communicator.channels),
        "transports": communicator.transports(),
        "nvls": communicator.nvls or None,
        "tuning": dict(communicator.tuning),
        "collectives": dict(communicator.collectives),
    }


def behind(communicator: CommunicatorPart) -> list[int]:
    """Ranks that have come less far in a communicator than the furthest; [] where all are alike."""
    parts: Iterable[RankPart] = communicator.ranks.values()
    furthest = max((part.stage for part in parts), default=None)
    return sorted(part.rank for part in parts if part.stage != furthest)
