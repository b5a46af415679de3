"""Rank and host of a log by its name, among the names of all logs that were given: used where its lines have none.

torchelastic's tree has local ranks, which are those of the job only where there is one node: `LocalRanks` settles that
by what the lines say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

PROCESS = "process "
"""With what the node of a single process begins: its local rank means nothing by itself."""
GROUPS, SEEN = 4096, 1024
"""Nodes whose local ranks are kept, and local ranks of one."""

_RANK = re.compile(r"(?:^|[^a-z])(?:rank|global_rank)[-_=]?(\d{1,7})(?!\d)", re.IGNORECASE)
_ELASTIC = re.compile(
    r"(?P<root>.*?)/?\battempt_(?P<attempt>\d{1,4})/(?P<local>\d{1,5})/(?:std(?:out|err)\.log|error\.json)$"
)
"""torchrun --log-dir: RUN_RANDOM/attempt_0/3/stderr.log."""
_ATTEMPT = re.compile(r"(?P<root>.*?)\battempt[-_](?P<number>\d{1,4})/")
_TASK = re.compile(
    r"(?:^|[^\d])(?P<job>(?!(?:19|20)\d\d(?:\d\d){0,2}[_.-])\d{3,12})[_.-](?P<rank>\d{1,6})\.(?:out|err|log|txt)$"
)
"""Slurm's `%j_%t`; a year or a date is no job."""
_ARRAY = re.compile(r"^slurm-\d+_\d+\.")
"""Slurm's own name for the logs of an array, whose numbers are no ranks."""
_POD = re.compile(r"^(?P<host>[a-z0-9][a-z0-9.-]{0,252})_[a-z0-9-]+_[a-z0-9-]+-[0-9a-f]{64}\.log$")
"""/var/log/containers of Kubernetes; of /var/log/pods the folder has namespace, pod and its uid."""
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
    """Where `rank` is a local rank: what stands for its node. "" for a rank of the job."""


NOBODYS = Whose()


def rank_in_name(name: str) -> int | None:
    """ "rank-3.nccl", "train_rank3.log", "nccl_trace_rank_3" → 3."""
    match = _RANK.search(PurePosixPath(name).name)
    return int(match[1]) if match else None


def owners(names: Sequence[str]) -> dict[str, Whose]:
    """By name what it says; names that say nothing are left out."""
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
    """What one name says by itself."""
    if (rank := rank_in_name(name)) is not None:
        return Whose(rank)
    if (elastic := _ELASTIC.match(name)) is not None:
        return Whose(int(elastic["local"]), node=elastic["root"] or ".")
    if (task := _TASK.search(path[-1] if path else "")) is not None and not _ARRAY.match(path[-1]):
        return Whose(int(task["rank"]))
    folder = next((match for part in reversed(path[:-1]) if (match := _RANK.fullmatch(part))), None)
    return None if folder is None else Whose(int(folder[1]))


def _counted(paths: dict[str, tuple[str, ...]]) -> dict[str, Whose]:
    """Names that differ in one number alone, which counts from 0: log_0.txt, log_1.txt; or 0/out.log, 1/out.log."""
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
    """By name its host: a folder or a file that is named like one, else the folders in which the names differ first."""
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
    """Whether the folders are torchelastic's, one a node with a random name."""
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
    """Names of logs of which there is a newer attempt beside them."""
    attempts = [(name, match) for name in names if (match := _ATTEMPT.match(name)) is not None]
    newest: dict[str, int] = {}
    for _, match in attempts:
        newest[match["root"]] = max(newest.get(match["root"], 0), int(match["number"]))
    return {name for name, match in attempts if int(match["number"]) < newest[match["root"]]}


class LocalRanks:
    """Which ranks of the job the local ranks of nodes are, by lines that have both."""

    def __init__(self) -> None:
        self._seen: dict[str, set[int]] = {}
        self._shifts: dict[str, set[int]] = {}

    def add(self, node: str, local: int, rank: int | None = None) -> None:
        """A local rank of this node; `rank`: what a line of it says that it is."""
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
        """None where it is not certain: of several nodes one says nothing, or its lines do not agree."""
        shifts = self._shifts.get(node)
        if shifts is not None:
            return local + next(iter(shifts)) if len(shifts) == 1 else None
        return local if self._seen.keys() == {node} and not node.startswith(PROCESS) else None

    def ranks(self) -> Iterator[int]:
        """All that are certain."""
        for node, seen in self._seen.items():
            for local in seen:
                if (rank := self.rank(node, local)) is not None:
                    yield rank
