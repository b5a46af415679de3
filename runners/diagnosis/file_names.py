"""Infer rank and host of a log from its name among the names of all given logs, for lines that have neither.

torchelastic's tree has local ranks. They equal the job's ranks only on a single node: `LocalRanks` maps them by the
lines of the logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

PROCESS = "process "
"""Prefix of the node of a single process, whose local rank identifies no global rank."""
GROUPS, SEEN = 4096, 1024
"""Maximum number of nodes with known local ranks, and of local ranks per node."""

_RANK = re.compile(r"(?:^|[^a-z])(?:rank|global_rank)[-_=]?(\d{1,7})(?!\d)", re.IGNORECASE)
_ELASTIC = re.compile(
    r"(?P<root>.*?)/?\battempt_(?P<attempt>\d{1,4})/(?P<local>\d{1,5})/(?:std(?:out|err)\.log|error\.json)$"
)
"""torchrun --log-dir: RUN_RANDOM/attempt_0/3/stderr.log."""
_ATTEMPT = re.compile(r"(?P<root>.*?)\battempt[-_](?P<number>\d{1,4})/")
_TASK = re.compile(
    r"(?:^|[^\d])(?P<job>(?!(?:19|20)\d\d(?:\d\d){0,2}[_.-])\d{3,12})[_.-](?P<rank>\d{1,6})\.(?:out|err|log|txt)$"
)
"""Slurm's `%j_%t`. A year or a date is not a job ID."""
_ARRAY = re.compile(r"^slurm-\d+_\d+\.")
"""Slurm's default name for logs of a job array. Its numbers are not ranks."""
_POD = re.compile(r"^(?P<host>[a-z0-9][a-z0-9.-]{0,252})_[a-z0-9-]+_[a-z0-9-]+-[0-9a-f]{64}\.log$")
"""Kubernetes: /var/log/containers. In /var/log/pods the folder has namespace, pod and uid."""
_POD_FOLDER = re.compile(r"^[a-z0-9-]+_(?P<host>[a-z0-9][a-z0-9.-]{0,252})_[0-9a-f-]{32,36}$")
_HOST = re.compile(
    r"^(?:node|host|machine|server|compute|ip)[-_]?[\w.-]{0,60}\d[\w.-]{0,60}$", re.IGNORECASE
)
_NO_HOST = re.compile(
    r"^(?:attempt|rank|logs?|std(?:out|err)|out|err|output|errors?|results?|nccl|trace|dumps?|run|task|step|epoch|version|tmp"
    r"|local_rank|worker|proc|gpu)s?[-_.]?\d*$|^\d+$",
    re.IGNORECASE,
)
_COUNTED = re.compile(
    r"^(?P<before>(?:.*[^a-z])?(?:rank|worker|workerlog|proc|process|task|gpu|local_rank|log|out|err|stdout|stderr)[-_.]?|)"
    r"(?P<number>\d{1,6})(?P<after>(?:\.(?:log|out|err|txt|stdout|stderr))*)$",
    re.IGNORECASE,
)
_ROTATED = re.compile(r"\.(?:log|out|err)\.\d+$", re.IGNORECASE)


class Whose(NamedTuple):
    rank: int | None = None
    host: str = ""
    node: str = ""
    """If `rank` is a local rank: an identifier of its node. "" for a global rank."""


NOBODYS = Whose()


def rank_in_name(name: str) -> int | None:
    """ "rank-3.nccl", "train_rank3.log", "nccl_trace_rank_3" → 3."""
    match = _RANK.search(PurePosixPath(name).name)
    return int(match[1]) if match else None


def owners(names: Sequence[str]) -> dict[str, Whose]:
    """Return rank and host by name. Names without either are omitted."""
    paths = {
        name: tuple(part for part in re.split(r"[/:]", name) if part not in ("", ".", ".."))
        for name in names
    }
    hosts = _hosts(paths)
    ranks = {name: whose for name in names if (whose := _alone(name, paths[name])) is not None}
    counted = _counted({name: path for name, path in paths.items() if name not in ranks})
    named = dict[str, Whose]()
    for name in names:
        whose = (ranks.get(name) or counted.get(name) or NOBODYS)._replace(host=hosts.get(name, ""))
        if whose != NOBODYS:
            named[name] = whose
    return named


def _alone(name: str, path: tuple[str, ...]) -> Whose | None:
    """Return the rank from one name without the others."""
    if (rank := rank_in_name(name)) is not None:
        return Whose(rank)
    if (elastic := _ELASTIC.match(name)) is not None:
        return Whose(int(elastic["local"]), node=elastic["root"] or ".")
    if (task := _TASK.search(path[-1] if path else "")) is not None and not _ARRAY.match(path[-1]):
        return Whose(int(task["rank"]))
    folder = next((match for part in reversed(path[:-1]) if (match := _RANK.fullmatch(part))), None)
    return None if folder is None else Whose(int(folder[1]))


def _counted(paths: dict[str, tuple[str, ...]]) -> dict[str, Whose]:
    """Find names that differ only in a number that counts from 0: log_0.txt, log_1.txt, or 0/out.log, 1/out.log."""
    groups: dict[tuple[tuple[str, ...], str], dict[str, int]] = {}
    for name, path in paths.items():
        for at in range(len(path) - 1, max(-1, len(path) - 3), -1):
            match = _COUNTED.match(path[at])
            if match is None or _ROTATED.search(path[at]):
                continue
            key = (path[:at], "/".join((match["before"] + "#" + match["after"], *path[at + 1 :])))
            groups.setdefault(key, {})[name] = int(match["number"])
            break
    whole = {
        key: numbers
        for key, numbers in groups.items()
        if len(numbers) > 1 and sorted(set(numbers.values())) == list(range(len(set(numbers.values()))))
    }
    folders = {key[0] for key in whole}
    return {
        name: Whose(number, node="" if len(folders) == 1 else "/".join(key[0]))
        for key, numbers in whole.items()
        for name, number in numbers.items()
    }


def _hosts(paths: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """Return hosts by name: a folder or file named like a host, else the first folders that differ between the names."""
    named = dict[str, str]()
    for name, path in paths.items():
        if (host := _host_of(path)) is not None:
            named[name] = host
    if named:
        return named
    deep = min((len(path) for path in paths.values()), default=0) - 1
    for at in range(deep):
        folders = {path[at] for path in paths.values()}
        if len(folders) > 1:
            if any(_NO_HOST.match(each) or re.match(r"attempt[-_]\d", each) for each in folders):
                return {}
            return {} if _elastic_roots(paths) else {name: path[at] for name, path in paths.items()}
    return {}


def _elastic_roots(paths: dict[str, tuple[str, ...]]) -> bool:
    """Whether the folders are torchelastic's, one per node with a random name."""
    return any(
        len(path) > 3 and re.match(r"attempt_\d+$", path[-3]) and path[-4] == path[0]
        for path in paths.values()
    )


def _host_of(path: tuple[str, ...]) -> str | None:
    for part in path[-4:-1]:
        if (pod := _POD_FOLDER.match(part)) is not None:
            return pod["host"]
        if _HOST.match(part):
            return part
    last = path[-1] if path else ""
    pod = _POD.match(last)
    if pod is not None:
        return pod["host"]
    stem = re.sub(r"(?:\.(?:log|out|err|txt|gz|xz|bz2|zst|nccl))+$", "", last)
    return stem if stem != last and _HOST.match(stem) else None


def older_attempts(names: Iterable[str]) -> set[str]:
    """Return the names of logs that have a newer attempt in the same tree."""
    attempts = [(name, match) for name in names if (match := _ATTEMPT.match(name)) is not None]
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
        return local if self._seen.keys() == {node} and not node.startswith(PROCESS) else None

    def ranks(self) -> Iterator[int]:
        """Yield all global ranks that are certain."""
        for node, seen in self._seen.items():
            for local in seen:
                if (rank := self.rank(node, local)) is not None:
                    yield rank
