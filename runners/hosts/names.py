"""Hosts as a user writes them: `--hosts a,b,c`, or a file as MPI and DeepSpeed have it. Pure.

A line of a file is `HOST [slots=N]` (`max_slots=N` is passed over); `#` begins a comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import RunError
from ..hub.routes import check_destination

MOST_HOSTS = 4096
_OPTION = re.compile(r"(slots|max_slots)=(\d{1,4})")


@dataclass(frozen=True, slots=True)
class Named:
    """One host."""

    destination: str
    """As ssh takes it: a name, an alias of the user's configuration, user@host."""
    slots: int | None = None
    """Ranks that it is to have; None where nobody says."""


def from_words(text: str) -> list[Named]:
    """The hosts of `--hosts`. Raises RunError."""
    return checked([Named(word.strip()) for word in text.split(",") if word.strip()], "--hosts")


def from_file(path: Path) -> list[Named]:
    """The hosts of a file. Raises RunError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise RunError(f"--hostfile {path} cannot be read: {why}") from None
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            found.append(_line(words, f"{path}, line {number}"))
    return checked(found, str(path))


def _line(words: list[str], where: str) -> Named:
    slots = None
    for word in words[1:]:
        option = _OPTION.fullmatch(word)
        if option is None:
            raise RunError(f"{where}: {word!r} is not understood: write HOST, or HOST slots=8")
        slots = int(option[2]) if option[1] == "slots" else slots
    if slots == 0:
        raise RunError(f"{where}: slots=0 starts no rank on {words[0]}: take the line out")
    return Named(words[0], slots)


def checked(hosts: list[Named], where: str) -> list[Named]:
    """The same, if they are hosts and each is there once. Raises RunError."""
    if not hosts:
        raise RunError(f"{where} names no host")
    if len(hosts) > MOST_HOSTS:
        raise RunError(f"{where} names {len(hosts)} hosts, and {MOST_HOSTS} are the most")
    for host in hosts:
        check_destination(host.destination)
    twice = duplicates(host.destination for host in hosts)
    if twice:
        raise RunError(f"{where} names {', '.join(twice)} more than once: each host is one node")
    return hosts


def duplicates(names: Iterable[str]) -> list[str]:
    """What is there more than once, in order."""
    seen: set[str] = set()
    found: list[str] = []
    for name in names:
        if name in seen and name not in found:
            found.append(name)
        seen.add(name)
    return found


def slots(hosts: list[Named]) -> int | None:
    """Ranks a host, where the file says; None where it does not. Raises RunError where they differ."""
    said = {host.slots for host in hosts if host.slots is not None}
    if not said:
        return None
    if len(said) > 1 or any(host.slots is None for host in hosts):
        told = ", ".join(f"{host.destination} {host.slots or 'none'}" for host in hosts)
        raise RunError(
            f"slots differ ({told}), and torchrun starts as many ranks on each node: "
            "give --nproc-per-node, or leave the others out"
        )
    return said.pop()
