"""Identify the writer of a line that is not NCCL's, by prefixes of launchers and shippers and by its file's prefix."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from .heads import rank_of

HOST = r"(?P<host>[A-Za-z0-9][\w.-]*)"
_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?: ?Z|[+-]\d\d:?\d\d)?"
_DAYS = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_DATE = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}\d{1,2} \d\d:\d\d:\d\d(?:\.\d{1,9})?"
_DETERMINED = rf"\[{_TIME}\] \[?[0-9a-f]{{8}}\]? \|\| "
"""Determined's time and container ID."""
_PROGRAM = r"[^\s:\[\]]{1,64}\[\d{1,10}\]: ?"
_SHIPPED = tuple(
    re.compile(pattern)
    for pattern in (
        # journald and rsyslog; CRI; all that begins with a time
        rf"(?:{_DAYS} )?{_TIME}(?: [A-Z]{{2,5}})? {HOST} {_PROGRAM}",
        rf"{_TIME}[ \t]?(?:std(?:out|err) [FP] )?",
        rf"(?:<\d{{1,3}}>)?{_DATE} {HOST} [^\s:\[\]]{{1,64}}(?:\[\d{{1,10}}\])?: ?",
        rf"<\d{{1,3}}>1 {_TIME} {HOST} \S+ \S+ \S+ (?:-|\[.{{1,400}}?\]) ?",
        rf"\d{{10}}\.\d{{6}} {HOST} {_PROGRAM}",
        # Determined, with a level
        rf"<\w{{0,8}}> +{_DETERMINED}",
        # vLLM's logger, which writes it before each line of a traceback, too; Kaggle's notebooks
        r"(?:ERROR|CRITICAL|WARNING|INFO|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]{1,80}:\d{1,6}\] ?",
        r"\d{1,7}\.\d{1,3}s\t\d{1,9}\t",
        # mpirun --timestamp-output
        rf"{_DAYS} {_DATE} \d{{4}}(?=[\[<])",
    )
)
"""Prefixes of log shippers. They contain the time, so they differ from line to line."""
_BEGIN = "<0123456789JFMASONDEWIC"
_DAY = ("Tue", "Wed", "Thu")
"""First characters of these prefixes, and first three letters of those with a weekday."""
_BEGINNINGS = frozenset("(" + _BEGIN + "".join(day[0] for day in _DAY))
"""First characters of these prefixes and of those in parentheses."""
_BAR = re.compile(r"\d%\|[^|]{0,400}\| *\S{1,40}/\S{1,40} \[[^\]]{1,400}\] *")
"""tqdm's progress bar from its percentage on. Text written after it is in the same line."""
BAR_TITLE = 200
"""Maximum characters before the percentage that belong to the bar. An earlier `|` ends it."""
_PAREN = re.compile(
    r"\s*\((?:(?:(?P<sky>node-\d+)|\w[\w.:<>-]*)(?:,? (?:rank=\d+, )?| rank=(?P<own>\d{1,7}) )pid=(?P<pid>\d+)|raylet)"
    rf"(?:, ip={HOST})?\) ?(?:\[[A-Za-z][\w-]{{0,30}}\] (?=[A-Z]{{4,8}} \d\d-\d\d ))?"
    r"|⟨(?P<record>[^\s⟩]*)(?: ?rank (?P<rank>\d{1,7}))?⟩ ?| +(?=\[rank\d+\]:)"
)
"""Prefixes of Ray, vLLM and SkyPilot (its rank is the node's; earlier versions wrote only its number), of JSON records
in distui's rendering, and of lists on web pages before torch's tag."""
_BRACKET = re.compile(
    rf"\[(?:pod/{HOST}/[\w.-]+\] ?"
    r"|(?:[\w.@-]*@)?\d+,(?:mpirank:)?(?P<mpi>\d{1,7})(?:,(?P<algo>[A-Za-z0-9][\w.-]*))?\]<std\w+>: ?"
    r"|(?:rank[:=]? ?|RANK ?|Rank[: ])(?P<rank>\d{1,7})\]:? ?"
    rf"|(?:[A-Za-z][A-Za-z_-]{{0,30}})?(?P<local>\d{{1,5}})\]:|{_DETERMINED[2:]})"
)
"""kubectl --prefix; mpirun and SageMaker; torch, Lightning and Accelerate; torchrun --tee, with the role; Determined."""
_HOSTS, _RANKS = ("host", "record", "algo", "sky"), ("rank", "mpi", "own")
"""Pattern groups that name a host, and those that name a rank."""


class Learnable(NamedTuple):
    """A pattern that is a prefix only if nearly all lines of a file match it."""

    pattern: re.Pattern[str]
    fits: Callable[[Sequence[re.Match[str]]], bool]
    """Whether the matches are really a prefix and not text of a similar form."""


def _counts(begun: Sequence[re.Match[str]]) -> bool:
    """Whether the numbers may be ranks, which repeat. Line or step numbers only grow."""
    numbers = [int(match["rank"]) for match in begun]
    return len(numbers) < 5 or any(later <= earlier for earlier, later in pairwise(numbers))


def _are_hosts(begun: Sequence[re.Match[str]]) -> bool:
    """Whether the words are hosts: hosts have digits or are few. "Epoch: " or "INFO: " are not hosts."""
    plain = [
        host for host in {match["host"] for match in begun} if not any(letter.isdigit() for letter in host)
    ]
    return not plain or not (len(plain) > 1 or plain[0].isupper() or len(begun) < 4)


def _are_pods(begun: Sequence[re.Match[str]]) -> bool:
    hosts, containers = {match["host"] for match in begun}, {match["container"] for match in begun}
    return (
        all("-" in host and re.search(r"\d", host) for host in hosts)
        and len(containers) <= 4
        and len(begun) >= 4
    )


def _come_again(begun: Sequence[re.Match[str]]) -> bool:
    return len(begun) >= 4 and len({match["host"] for match in begun}) <= len(begun) // 2


_LEARNABLE = tuple(
    Learnable(re.compile(pattern), fits)
    for pattern, fits in (
        (r"\s*(?P<rank>\d{1,6}): ?", _counts),
        (r"\[(?P<rank>\d{1,6})\] ", _counts),
        (r"(?P<host>\d{1,3}(?:\.\d{1,3}){3}) \[\d{1,5}\] ", lambda begun: len(begun) >= 4),
        (r"[Rr]ank[ =-]?(?P<rank>\d{1,6}) ?[:|] ", _counts),
        (r"(?P<host>[\w-]{1,40}/\d{1,6}) (?=\[)", _come_again),
        (r"[\w-]{1,40}/(?P<rank>\d{1,6}) ", _counts),
        (r"(?!\[?(?:\d+|rank\d*|default\d+)\b(?!\.))\[?" + HOST + r"\]?(?::| +\|) ", _are_hosts),
        (r"(?P<host>[a-z0-9][a-z0-9.-]*) (?P<container>[a-z][a-z0-9-]*) ", _are_pods),
        (r"(?P<host>[\w.$=-]{1,200}(?:/[\w.$=-]{1,200}){1,6}) ", _come_again),
    )
)
"""srun -l; MPICH and Intel MPI; TorchX (its replica is a node if local ranks follow, else a rank); pdsh, DeepSpeed,
docker compose and SageMaker; stern; streams of CloudWatch; TPU pods, whose numbers are those of nodes."""
LEARN, SHARE = 400, 0.8
"""Number of lines that are examined per file, and the minimum share of them with the prefix."""
_TAGS = re.compile(r"^(?:\[[\w:.,<> -]{1,40}\](?:<std\w+>)?:?\s?)+")
"""Other prefixes of launchers and loggers: [2024-01-01 10:00:00]"""
_RAY_RANK = re.compile(
    r"\bpid=(?P<pid>\d+)\) world_rank=(?P<rank>\d{1,7})\b|process group for: \S+ \[rank=(?P<own>\d{1,7}),"
)
"""Ray Train's line that maps a process to a rank."""
_LOGGED = re.compile(
    r"[\w ./:|,<>()\[\]-]{0,120}?\b(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL)\b[^\w\[]{0,6}(?=\[rank\d)"
)
"""A logger's prefix before lines that it passes on from a rank: its name, and a level that is not the line's."""
LAYERS = 5
"""Maximum number of consecutive prefixes."""


class Writer(NamedTuple):
    """The writer of a line. None and "" mean unknown."""

    rank: int | None
    host: str
    local: int | None
    """Its local rank."""
    pid: str
    text: str
    """The line without prefixes."""

    @property
    def stream(self) -> str:
        """A key that is equal for all lines of one writer, as far as prefixes distinguish writers."""
        parts = (self.host, self.rank, self.local, self.pid)
        return "" if parts == ("", None, None, "") else "|".join(map(str, parts))


def _shipped(text: str) -> re.Match[str] | None:
    if text[:1] not in _BEGIN and text[:3] not in _DAY:
        return None
    for pattern in _SHIPPED:
        if (match := pattern.match(text)) is not None:
            return match
    return None


def unshipped(line: str) -> str:
    """Return the line without the prefix of a log shipper or a progress bar."""
    match = _shipped(line)
    return _without_bar(line if match is None else line[match.end() :])


def _without_bar(line: str) -> str:
    """Return the line without its first progress bar."""
    bar = _BAR.search(line) if "%|" in line else None
    if bar is None:
        return line
    begin = max(line.rfind("|", 0, bar.start()) + 1, bar.start() - BAR_TITLE)
    return line[:begin] + line[bar.end() :]


def learned(lines: Sequence[str]) -> re.Pattern[str] | None:
    """Return the prefix pattern that nearly all lines of a file match; None without one."""
    some = [text for line in lines[:LEARN] if (text := unshipped(line)).strip()]
    for each in _LEARNABLE:
        begun = [match for match in map(each.pattern.match, some) if match is not None]
        if len(some) > 1 and len(begun) >= SHARE * len(some) and each.fits(begun):
            return each.pattern
    return None


_PROMPT = re.compile(
    rf"(?:\([\w./-]{{1,80}}\) ?)*\[?[a-z_][\w.-]{{0,40}}@{HOST}(?::| )\S{{0,200}}?\]?[#$] "
)
"""The prompt of a shell before a command, in a log copied from a terminal."""


def prompted(lines: Sequence[str]) -> set[str]:
    """Return the hosts in shell prompts among the lines."""
    prompts = (_PROMPT.match(line) for line in lines if "@" in line)
    return {match["host"] for match in prompts if match is not None}


def _prefix(text: str) -> re.Match[str] | None:
    """Match a prefix that is valid in every file."""
    begin = text[:1]
    if begin == "[":
        return _BRACKET.match(text)
    return _PAREN.match(text) if begin and begin in "(⟨ " else None


def _is_bare(line: str) -> bool:
    """Whether a line cannot have a prefix. A cheap test that most lines of a rank's own log pass."""
    return line.lstrip()[:1] not in _BEGINNINGS and "[" not in line and "⟨" not in line and "%|" not in line


def writer(line: str, prefix: re.Pattern[str] | None) -> Writer:  # noqa: C901
    """Return the writer of a line. `prefix`: the pattern of its file."""
    if prefix is None and _is_bare(line):
        return Writer(None, "", None, "", line)
    text, rank, host, local, pid = line, rank_of(line), "", None, ""
    for _ in range(LAYERS):
        match = _shipped(text)
        if match is None and prefix is not None and (match := prefix.match(text)) is not None:
            prefix = None
        match = match or _prefix(text)
        if match is None and text.find("[rank", 1, 200) > 0:
            match = _LOGGED.match(text)
        if match is None:
            break
        for name, value in match.groupdict().items():
            if value is None:
                continue
            if name in _HOSTS:
                host = host or value
            elif name in _RANKS:
                rank = int(value) if rank is None else rank
            elif name == "local":
                local = int(value) if local is None else local
            elif name == "pid":
                pid = value
        text = text[match.end() :]
    text = _without_bar(text)
    return Writer(rank, host, local, pid, _TAGS.sub("", text) if text[:1] == "[" else text)


def ray_rank(writer: Writer) -> tuple[str, int] | None:
    """Return Ray's process and its rank if the line names both, else None."""
    match = _RAY_RANK.search(writer.text, 0, 400)
    if match is None:
        return None
    return (match["pid"], int(match["rank"])) if match["pid"] else (writer.pid, int(match["own"]))
