"""The formats of formats.toml as patterns: of lines, and of names of files. Lists of words are texts."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from itertools import pairwise
from typing import Any, NamedTuple

_TABLES: dict[str, dict[str, Any]] = tomllib.loads(
    resources.files(__package__).joinpath("formats.toml").read_text("utf-8")
)


class LineFormat(NamedTuple):
    name: str
    """The programs that write it."""
    test: str
    """All characters that such a line may begin with; of a learned format the name in `TESTS`."""
    pattern: str


def _formats(section: str) -> tuple[LineFormat, ...]:
    return tuple(LineFormat(name, test, _whole(text)) for name, (test, text) in _TABLES[section].items())


def _whole(pattern: str) -> str:
    """Return a pattern with its parts in place of their names."""
    for _ in range(2):  # parts may contain parts
        for name, part in _TABLES["parts"].items():
            pattern = pattern.replace(f"<{name}>", part)
    return pattern


def _patterns(section: str) -> dict[str, re.Pattern[str]]:
    return {name: re.compile(_whole(pattern)) for name, pattern in _TABLES[section].items()}


def _alternatives(patterns: Iterable[str], in_any_case: Iterable[str]) -> re.Pattern[str]:
    """Return one pattern for several. `in_any_case`: those that ignore case."""
    return re.compile("|".join([*patterns, *(f"(?i:{pattern})" for pattern in in_any_case)]))


SIGNALS: Mapping[str, str] = _TABLES["signals"]
_TABLES["parts"]["SIGNAL"] = f"(?P<word>{'|'.join(SIGNALS)}|Out [Oo]f [Mm]emory)"
SHIPPED, TAGS, RANKS, TIMES = map(_formats, ("shipped", "tags", "ranks", "times"))
LEVELS: Mapping[str, re.Pattern[str]] = _patterns("levels")
NCCL: Mapping[str, re.Pattern[str]] = _patterns("nccl")
PHRASES: Mapping[str, re.Pattern[str]] = _patterns("phrases")
NAMES: Mapping[str, re.Pattern[str]] = _patterns("names")
RECORDS: Mapping[str, Sequence[str]] = _TABLES["records"]
ERRORS: Mapping[str, Sequence[str]] = _TABLES["errors"]
LINES: Mapping[str, re.Pattern[str]] = {
    name: _alternatives(patterns, _TABLES["lines_in_any_case"].get(name, ()))
    for name, patterns in _TABLES["lines"].items()
}
OUT_OF_MEMORY: Mapping[str, re.Pattern[str]] = _patterns("out_of_memory")
EXITS: Sequence[str] = _TABLES["exits"]["needles"]
EXIT_FORMS: Mapping[str, re.Pattern[str]] = _patterns("exit_forms")
NO_LOGS = frozenset[str](_TABLES["files"]["no_logs"])


def joined(formats: Iterable[LineFormat]) -> re.Pattern[str]:
    """Return one pattern for several formats, tried in their order. Its groups have the format's number: `rank_2`."""
    numbered = enumerate(formats)
    return re.compile(
        "|".join(re.sub(r"\(\?P<(\w+)>", rf"(?P<\1_{number}>", each.pattern) for number, each in numbered)
    )


def by_first_character(formats: Sequence[LineFormat]) -> dict[str, re.Pattern[str]]:
    """Return the joined pattern of the formats that a line with this first character may have."""
    characters = set[str]().union(*(each.test for each in formats))
    return {each: joined(format for format in formats if each in format.test) for each in characters}


def groups(match: re.Match[str]) -> dict[str, str]:
    """Return the groups of a joined pattern that are not empty, by their names in the table."""
    return {name.partition("_")[0]: value for name, value in match.groupdict().items() if value}


Matches = Sequence[re.Match[str]]


def _are_ranks(begun: Matches) -> bool:
    """Whether the numbers may be ranks, which repeat. Line or step numbers only grow."""
    numbers = [int(match["rank"]) for match in begun]
    return len(numbers) < 5 or any(later <= earlier for earlier, later in pairwise(numbers))


def _are_hosts(begun: Matches) -> bool:
    """Whether the words are hosts: hosts have digits or are few. "Epoch: " or "INFO: " are not hosts."""
    words = [host for host in {match["host"] for match in begun} if not re.search(r"\d", host)]
    return not words or (len(words) == 1 and not words[0].isupper() and len(begun) >= 4)


def _are_pods(begun: Matches) -> bool:
    pods, containers = {match["host"] for match in begun}, {match["container"] for match in begun}
    return all(re.search(r"-.*\d|\d.*-", pod) for pod in pods) and len(containers) <= 4 <= len(begun)


def _are_repeated(begun: Matches) -> bool:
    return len(begun) >= 4 and len({match["host"] for match in begun}) <= len(begun) // 2


def _are_placed(begun: Matches) -> bool:
    """Whether the words are hosts and the numbers their processes. `train.py:17 ` is a place in a file."""
    hosts = {match["host"] for match in begun}
    named = [host for host in hosts if re.search(r"\d|-", host) and not re.search(r"\.[a-z]{1,4}$", host)]
    return len(named) == len(hosts) and len(begun) >= 4


def _are_many(begun: Matches) -> bool:
    return len(begun) >= 4


TESTS: Mapping[str, Callable[[Matches], bool]] = {
    "ranks": _are_ranks,
    "hosts": _are_hosts,
    "pods": _are_pods,
    "repeated": _are_repeated,
    "placed": _are_placed,
    "many": _are_many,
}
"""Whether the matches of a learned format are really a prefix and not text of a similar form."""
LEARNED = tuple((re.compile(each.pattern), TESTS[each.test]) for each in _formats("learned"))
