"""Rules for the launch in a Dockerfile: its CMD and ENTRYPOINT."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

from ..finding import Finding
from . import launches
from .launcher_calls import read_script
from .lint_rules import case
from .shell import names_in
from .surroundings import Surroundings

_INSTRUCTION = re.compile(r"^[ \t]*(CMD|ENTRYPOINT)[ \t]+((?:.*\\\n)*.*)$", re.MULTILINE | re.IGNORECASE)
_FROM = re.compile(r"^\s*FROM\s+\S+", re.MULTILINE | re.IGNORECASE)


def is_dockerfile(name: str, text: str) -> bool:
    lower = name.rpartition("/")[2].lower()
    return (lower.startswith("dockerfile") or lower.endswith(".dockerfile")) and _FROM.search(
        text
    ) is not None


def check_dockerfile(text: str, around: Surroundings) -> Iterator[Finding]:
    """Check the last CMD and the last ENTRYPOINT of a Dockerfile."""
    last = {match[1].upper(): match for match in _INSTRUCTION.finditer(text)}
    for instruction, match in last.items():
        line = text.count("\n", 0, match.start(2)) + 1
        words = _list(match[2])
        if words is None:
            yield from launches.check_text(match[2], around, line)
            continue
        command = " ".join(map(shlex.quote, words))
        yield from launches.check_text(command, around, line)
        name = next((name for word in words for name in names_in(word)), "")
        is_launch = bool(read_script(command).started)
        if name and is_launch and words[0].rpartition("/")[2] not in ("sh", "bash"):
            yield case(
                "L58",
                "docker",
                around.at(line),
                {"name": name, "instruction": instruction},
                value=f"${name}",
            )


def _list(text: str) -> list[str] | None:
    """Return the words of the list form, None for the shell form."""
    try:
        words = json.loads(text)
    except ValueError:
        return None
    return [str(word) for word in words] if isinstance(words, list) else None
