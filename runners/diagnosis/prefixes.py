"""Identify the writer of a line by the formats of line_formats.py, among them the learned format of its file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from .heads import rank_of
from .line_formats import LEARNED, PHRASES, SHIPPED, TAGS, by_first_character, groups

_SHIPPED, _TAGS = by_first_character(SHIPPED), by_first_character(TAGS)
_BEGINNINGS = frozenset("(").union(_SHIPPED)
BAR_TITLE = 200
"""Maximum characters before the percentage that belong to the bar. An earlier `|` ends it."""
LEARN, SHARE = 400, 0.8
"""Number of lines that are examined per file, and the minimum share of them with the prefix."""
OF_LAUNCHERS = ("srun: ", "slurmstepd: ", "mpirun: ", "pdsh@")
"""Lines of launchers, which have not the prefix that they give the lines of their ranks."""
LAYERS = 5
"""Maximum number of consecutive prefixes."""


class Writer(NamedTuple):
    """The writer of a line. None and "" mean unknown."""

    rank: int | None
    host: str
    local: int | None
    pid: str
    text: str
    """The line without prefixes."""

    @property
    def stream(self) -> str:
        """A key that is equal for all lines of one writer, as far as prefixes distinguish writers."""
        parts = (self.host, self.rank, self.local, self.pid)
        return "" if parts == ("", None, None, "") else "|".join(map(str, parts))


def _match(formats: dict[str, re.Pattern[str]], text: str) -> re.Match[str] | None:
    pattern = formats.get(text.lstrip()[:1])
    return None if pattern is None else pattern.match(text)


def unshipped(line: str) -> str:
    """Return the line without the prefix of a log shipper or a progress bar."""
    match = _match(_SHIPPED, line)
    return _without_bar(line if match is None else line[match.end() :])


def _without_bar(line: str) -> str:
    bar = PHRASES["progress_bar"].search(line) if "%|" in line else None
    if bar is None:
        return line
    begin = max(line.rfind("|", 0, bar.start()) + 1, bar.start() - BAR_TITLE)
    return line[:begin] + line[bar.end() :]


def learned(lines: Sequence[str]) -> re.Pattern[str] | None:
    """Return the prefix pattern that nearly all lines of a file match; None without one."""
    some = [text for line in lines[:LEARN] if (text := unshipped(line)).strip()]
    some = [text for text in some if not text.startswith(OF_LAUNCHERS)]
    for pattern, is_prefix in LEARNED:
        begun = [match for match in map(pattern.match, some) if match is not None]
        if len(some) > 1 and len(begun) >= SHARE * len(some) and is_prefix(begun):
            return pattern
    return None


def prompted(lines: Sequence[str]) -> set[str]:
    """Return the hosts in shell prompts among the lines."""
    prompts = (PHRASES["prompt"].match(line) for line in lines if "@" in line)
    return {match["host"] for match in prompts if match is not None}


def _is_bare(line: str) -> bool:
    """Whether a line cannot have a prefix. A cheap test that most lines of a rank's own log pass."""
    return line.lstrip()[:1] not in _BEGINNINGS and "[" not in line and "⟨" not in line and "%|" not in line


def writer(line: str, learned_prefix: re.Pattern[str] | None) -> Writer:
    """Return the writer of a line. `learned_prefix`: the pattern of its file."""
    if learned_prefix is None and _is_bare(line):
        return Writer(None, "", None, "", line)
    named, text = _taken_apart(line, learned_prefix)
    rank = rank_of(line)
    if rank is None and "rank" in named:
        rank = int(named["rank"])
    local = int(named["local"]) if "local" in named else None
    text = PHRASES["brackets"].sub("", _without_bar(text))
    return Writer(rank, named.get("host", ""), local, named.get("pid", ""), text)


def _taken_apart(line: str, learned_prefix: re.Pattern[str] | None) -> tuple[dict[str, str], str]:
    """Return the values in the prefixes of a line, by name, and the text after them."""
    named: dict[str, str] = {}
    for _ in range(LAYERS):
        match = _match(_SHIPPED, line)
        if match is None and learned_prefix is not None:
            match = learned_prefix.match(line)
            learned_prefix = learned_prefix if match is None else None  # a line has it once
        match = match or _match(_TAGS, line) or _logged(line)
        if match is None:
            break
        named = groups(match) | named
        line = line[match.end() :]
        if match[0].startswith("|"):
            line = line.rstrip().removesuffix("|").rstrip()
    return named, line


def _logged(text: str) -> re.Match[str] | None:
    return PHRASES["logged"].match(text) if text.find("[rank", 1, 200) > 0 else None


def ray_rank(writer: Writer) -> tuple[str, int] | None:
    """Return Ray's process and its rank if the line names both, else None."""
    match = PHRASES["ray_rank"].search(writer.text, 0, 400)
    if match is None:
        return None
    return (match["pid"], int(match["rank"])) if match["pid"] else (writer.pid, int(match["own"]))
