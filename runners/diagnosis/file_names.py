"""Infer rank and host of a log from its name among the names of all given logs, for lines that have neither.

torchelastic's tree has local ranks. They equal the job's ranks only on a single node: `LocalRanks` maps them by the
lines of the logs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from .line_formats import NAMES

PROCESS = "process "
"""Prefix of the node of a single process, whose local rank identifies no global rank."""
GROUPS, SEEN = 4096, 1024
"""Maximum number of nodes with known local ranks, and of local ranks per node."""

Parts = tuple[str, ...]
"""The folders and the file of a name."""


class Whose(NamedTuple):
    rank: int | None = None
    host: str = ""
    node: str = ""
    """If `rank` is a local rank: an identifier of its node. "" for a global rank."""


NOBODYS = Whose()


def rank_in_name(name: str) -> int | None:
    """ "rank-3.nccl", "train_rank3.log", "nccl_trace_rank_3" → 3."""
    match = NAMES["rank"].search(PurePosixPath(name).name)
    return int(match[1]) if match else None


def owners(names: Sequence[str]) -> dict[str, Whose]:
    """Return rank and host by name. Names without either are omitted."""
    paths = {name: _parts(name) for name in names}
    hosts = _hosts(paths)
    ranks = {name: whose for name in names if (whose := _alone(name, paths[name])) is not None}
    ranks |= _counted({name: path for name, path in paths.items() if name not in ranks})
    named = [name for name in names if name in ranks or name in hosts]
    return {name: ranks.get(name, NOBODYS)._replace(host=hosts.get(name, "")) for name in named}


def _parts(name: str) -> Parts:
    return tuple(part for part in re.split(r"[/:]", name) if part not in ("", ".", ".."))


def _alone(name: str, path: Parts) -> Whose | None:
    """Return the rank from one name without the others."""
    if (rank := rank_in_name(name)) is not None:
        return Whose(rank)
    if (elastic := NAMES["elastic"].match(name)) is not None:
        return Whose(int(elastic["local"]), node=elastic["root"] or ".")
    file = path[-1] if path else ""
    if (task := NAMES["task"].search(file)) is not None and not NAMES["array"].match(file):
        return Whose(int(task["rank"]))
    folder = next((match for part in reversed(path[:-1]) if (match := NAMES["rank"].fullmatch(part))), None)
    return None if folder is None else Whose(int(folder[1]))


def _counted(paths: dict[str, Parts]) -> dict[str, Whose]:
    """Find names that differ only in a number that counts from 0: log_0.txt, log_1.txt, or 0/out.log, 1/out.log."""
    groups: dict[tuple[Parts, str], dict[str, int]] = {}
    for name, path in paths.items():
        for at in range(len(path) - 1, max(-1, len(path) - 3), -1):
            match = NAMES["counted"].match(path[at])
            if match is None or NAMES["rotated"].search(path[at]):
                continue
            key = (path[:at], "/".join((match["before"] + "#" + match["after"], *path[at + 1 :])))
            groups.setdefault(key, {})[name] = int(match["number"])
            break
    named: dict[str, Whose] = {}
    whole = [key for key, numbers in groups.items() if _counts_from_zero(numbers.values())]
    folders = {folder for folder, _ in whole}
    for folder, form in whole:
        node = "" if len(folders) == 1 else "/".join(folder)
        for name, number in groups[folder, form].items():
            named[name] = Whose(number, node=node)
    return named


def _counts_from_zero(numbers: Collection[int]) -> bool:
    return len(numbers) > 1 and set(numbers) == set(range(len(set(numbers))))


def _hosts(paths: dict[str, Parts]) -> dict[str, str]:
    """Return hosts by name: a folder or file named like a host, else the first folders that differ between the names."""
    named = dict[str, str]()
    for name, path in paths.items():
        if (host := _host_of(path)) is not None:
            named[name] = host
    if named:
        return named
    shortest = min(map(len, paths.values()), default=0)
    for at in range(shortest - 1):
        folders = {path[at] for path in paths.values()}
        if len(folders) > 1:
            if any(map(NAMES["no_host"].match, folders)) or _elastic_roots(paths):
                return {}
            return {name: path[at] for name, path in paths.items()}
    return {}


def _elastic_roots(paths: dict[str, Parts]) -> bool:
    """Whether the folders are torchelastic's, one per node with a random name."""
    return any(
        len(path) > 3 and re.match(r"attempt_\d+$", path[-3]) and path[-4] == path[0]
        for path in paths.values()
    )


def _host_of(path: Parts) -> str | None:
    for part in path[-4:-1]:
        if (pod := NAMES["pod_folder"].match(part)) is not None:
            return pod["host"]
        if NAMES["host"].match(part):
            return part
    last = path[-1] if path else ""
    pod = NAMES["pod"].match(last)
    if pod is not None:
        return pod["host"]
    stem = re.sub(r"(?:\.(?:log|out|err|txt|gz|xz|bz2|zst|nccl))+$", "", last)
    return stem if stem != last and NAMES["host"].match(stem) else None


def older_attempts(names: Iterable[str]) -> set[str]:
    """Return the names of logs that have a newer attempt in the same tree."""
    attempts = [(name, match) for name in names if (match := NAMES["attempt"].match(name)) is not None]
    newest: dict[str, int] = {}
    for _, match in attempts:
        newest[match["root"]] = max(newest.get(match["root"], 0), int(match["number"]))
    return {name for name, match in attempts if int(match["number"]) < newest[match["root"]]}


class LocalRanks:
    """Map local ranks of nodes to global ranks by lines that contain both."""

    def __init__(self) -> None:
        self._seen: dict[str, set[int]] = {}
        self._shifts: dict[str, set[int]] = {}

    def add(self, node: str, local: int, rank: int | None = None) -> None:
        """Add a node's local rank. `rank`: its global rank if a line names it."""
        if node not in self._seen and len(self._seen) >= GROUPS:
            return
        seen = self._seen.setdefault(node, set())
        if len(seen) < SEEN:
            seen.add(local)
        if rank is not None:
            shifts = self._shifts.setdefault(node, set())
            if len(shifts) < 2:
                shifts.add(rank - local)

    def rank(self, node: str, local: int) -> int | None:
        """Return the global rank; None if it is uncertain, because the node's lines lack it or contradict each other."""
        shifts = self._shifts.get(node)
        if shifts is not None:
            return local + next(iter(shifts)) if len(shifts) == 1 else None
        nodes = [each for each in self._seen if not each.startswith(PROCESS)]
        has_one_writer = len(self._seen) - len(nodes) <= 1
        return local if nodes == [node] and has_one_writer else None

    def ranks(self) -> Iterator[int]:
        """Yield all global ranks that are certain."""
        for node, seen in self._seen.items():
            for local in seen:
                if (rank := self.rank(node, local)) is not None:
                    yield rank
