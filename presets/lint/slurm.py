"""Read the options of Slurm: the #SBATCH lines of a batch script, and the words of srun."""

from __future__ import annotations

import functools
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from ..text_formats import whole
from .shell import Word, read_commands

_DIRECTIVE = re.compile(r"#SBATCH(?=\s|$)(.*)")
_GPUS = re.compile(r"(?:gres[:/])?gpu(?::[A-Za-z][\w.-]*)?(?:[:=](\d+))?(?:\(.*\))?")
_COUNT = re.compile(r"(?:[A-Za-z][\w.-]*:)?(\d+)")
MOST_DIRECTIVES = 200


@functools.cache
def launch_words() -> Mapping[str, Any]:
    """Return the tables of launch_words.toml."""
    return tomllib.loads(resources.files(__package__).joinpath("launch_words.toml").read_text("utf-8"))


@dataclass(frozen=True, slots=True)
class Slurm:
    """Options of sbatch, of srun, or of both together. None means unknown."""

    options: Mapping[str, Word] = field(default_factory=dict)
    """Long name → value. The value of a switch is its own name."""

    def has(self, name: str) -> bool:
        return name in self.options

    def text(self, name: str) -> str:
        word = self.options.get(name)
        return word.text if word else ""

    def number(self, name: str) -> int | None:
        return whole(self.text(name))

    def under(self, step: Slurm) -> Slurm:
        """Return these options as a step changes them."""
        return Slurm({**self.options, **step.options})

    @property
    def nodes(self) -> int | None:
        """Return the number of nodes, 1 if nothing can ask for more."""
        least, _, most = self.text("nodes").partition("-")
        if self.has("nodes"):
            return whole(least) if most in ("", least) else None
        tasks, each = self.number("ntasks"), self.number("ntasks-per-node")
        if tasks and each and tasks % each == 0:
            return tasks // each
        several = ("ntasks", "gpus", "nodelist", "exclude", "array")
        return None if any(map(self.has, several)) and tasks != 1 else 1

    @property
    def tasks(self) -> int | None:
        """Return the number of tasks of a step on all nodes."""
        if self.has("ntasks"):
            return self.number("ntasks")
        each, nodes = self.number("ntasks-per-node"), self.nodes
        if self.has("ntasks-per-node"):
            return each * nodes if each and nodes else None
        return None if self.has("ntasks-per-gpu") or self.has("gpus-per-task") else nodes

    @property
    def tasks_per_node(self) -> int | None:
        tasks, nodes = self.tasks, self.nodes
        if tasks and nodes:
            return -(-tasks // nodes)
        return self.number("ntasks-per-node")

    @property
    def gpus(self) -> int | None:
        """Return the GPUs per node."""
        each = _count(self.text("gpus-per-node"))
        if each is None:
            each = _of_gres(self.text("gres"))
        if each is None and self.nodes and self.has("gpus"):
            total = _count(self.text("gpus"))
            each = total // self.nodes if total and total % self.nodes == 0 else None
        if each is None and self.has("gpus-per-task") and self.tasks_per_node:
            per_task = _count(self.text("gpus-per-task"))
            each = per_task * self.tasks_per_node if per_task else None
        return each

    @property
    def gpus_per_task(self) -> int | None:
        """Return the GPUs that one task sees, if Slurm divides them by task."""
        return None if self.text("gpu-bind").endswith("none") else _count(self.text("gpus-per-task"))

    @property
    def takes_whole_nodes(self) -> bool:
        return self.has("exclusive") or (self.gpus or 0) >= 8 or self.text("mem") == "0"

    def environment(self) -> dict[str, str]:
        """Return the variables that Slurm sets for a batch script with these options, if they are known."""
        known = {
            "SLURM_NNODES": self.nodes,
            "SLURM_JOB_NUM_NODES": self.nodes,
            "SLURM_NTASKS": self.tasks if self.has("ntasks") or self.has("ntasks-per-node") else None,
            "SLURM_NPROCS": self.tasks if self.has("ntasks") or self.has("ntasks-per-node") else None,
            "SLURM_NTASKS_PER_NODE": self.number("ntasks-per-node"),
            "SLURM_GPUS_ON_NODE": self.gpus,
            "SLURM_GPUS_PER_NODE": _plain_count(self.text("gpus-per-node")),
            "SLURM_GPUS_PER_TASK": _plain_count(self.text("gpus-per-task")),
            "SLURM_CPUS_PER_TASK": self.number("cpus-per-task"),
        }
        return {name: str(value) for name, value in known.items() if value is not None}


def _plain_count(text: str) -> int | None:
    return whole(text)


def _count(text: str) -> int | None:
    """Return the number in `4` or `a100:4`."""
    match = _COUNT.fullmatch(text)
    return whole(match[1]) if match else None


def _of_gres(text: str) -> int | None:
    """Return the number of GPUs in a list of generic resources."""
    for part in text.split(","):
        match = _GPUS.fullmatch(part.strip())
        if match:
            return whole(match[1] or "1")
    return None


@dataclass(frozen=True, slots=True)
class Directive:
    """One option of an #SBATCH line."""

    name: str
    """Long name, or as written if it is unknown."""
    value: Word
    known: bool
    late: bool
    """True if it follows a command, where sbatch does not read it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The #SBATCH lines of a batch script."""

    directives: Sequence[Directive]
    slurm: Slurm
    components: int = 1
    """Parts of a heterogeneous job."""


@functools.lru_cache(maxsize=16)
def read_batch(text: str, first_line: int = 1) -> Batch | None:
    """Return the #SBATCH lines of a text, or None if it has none."""
    if "#SBATCH" not in text:
        return None
    directives: list[Directive] = []
    late, components = False, 1
    inside = _lines_of_documents(text, first_line)
    for number, line in enumerate(text.split("\n"), first_line):
        match = _DIRECTIVE.match(line) if number not in inside else None
        if match is None:
            late = late or not (line.lstrip().startswith("#") or not line.strip())
            continue
        components += match[1].split()[:1] == ["hetjob"]
        if len(directives) < MOST_DIRECTIVES:
            directives += _directives(match[1], number, late)
    if not directives:
        return None
    early = {one.name: one.value for one in directives if one.name and one.known and not one.late}
    return Batch(directives, Slurm(early), components)


def _lines_of_documents(text: str, first_line: int) -> set[int]:
    """Return the lines that are in here-documents, whose #SBATCH lines are those of another script."""
    lines: set[int] = set()
    for command in read_commands(text, first_line) if "<<" in text else ():
        if command.here:
            lines.update(range(command.here.line, command.here.line + command.here.text.count("\n")))
    return lines


def _directives(text: str, line: int, late: bool) -> Iterator[Directive]:
    try:
        words = [Word(part, line) for part in shlex.split(text, comments=True)]
    except ValueError:
        return
    for name, value, known in _options(words):
        yield Directive(name, value, known, late)
    stray = next(iter(_stray(words)), None)
    if stray is not None and all(word.text != "=" for word in words):
        yield Directive("", stray, True, late)


def read_step(words: Sequence[Word]) -> tuple[Slurm, int]:
    """Return the options after `srun`, and the number of words that they take."""
    options: dict[str, Word] = {}
    taken = 0
    while taken < len(words) and words[taken].text.startswith("-") and words[taken].text != "--":
        name, value, count, _ = _option(words, taken)
        options[name] = value
        taken += count
    return Slurm(options), taken


def _options(words: Sequence[Word]) -> Iterator[tuple[str, Word, bool]]:
    at = 0
    while at < len(words):
        if not words[at].text.startswith("-"):
            at += 1
            continue
        name, value, count, known = _option(words, at)
        yield name, value, known
        at += count


def _stray(words: Sequence[Word]) -> Iterator[Word]:
    """Yield the words that are neither an option nor its value."""
    at = 0
    while at < len(words):
        if words[at].text.startswith("-"):
            at += _option(words, at)[2]
        else:
            if words[at].text not in ("hetjob", "=") and at > 0:
                yield words[at]
            at += 1


def _option(words: Sequence[Word], at: int) -> tuple[str, Word, int, bool]:
    """Return name, value, number of words, and whether Slurm has it."""
    word = words[at]
    following = words[at + 1] if at + 1 < len(words) else Word("", word.line)
    names = launch_words()["slurm"]
    if not word.text.startswith("--"):
        long = names["short"].get(word.text[1:2])
        if long is None:
            return word.text, word, 1, True
        if len(word.text) > 2:
            return long, Word(word.text[2:].removeprefix("="), word.line, word.later), 1, True
        return long, following, 2, True
    name, equals, value = word.text[2:].partition("=")
    name = _full_name(name)
    if equals:
        return name, Word(value, word.line, word.later), 1, name in names["values"] or _is_switch(name)
    if name in names["values"] and name not in names["optional"]:
        return name, following, 2, True
    return name, Word(name, word.line), 1, _is_switch(name) or name in names["optional"]


def _is_switch(name: str) -> bool:
    names = launch_words()["slurm"]
    return name in names["switches"] or name in names["optional"]


ALIASES = {"tasks-per-node": "ntasks-per-node", "tasks": "ntasks"}


@functools.lru_cache(maxsize=500)
def _full_name(name: str) -> str:
    """Return the option with this name or this prefix, as getopt matches it; `cpu_bind` is an old spelling."""
    names = launch_words()["slurm"]
    name = ALIASES.get(name, name)
    every = {*names["values"], *names["switches"], *names["optional"]}
    if name in every:
        return name
    plain = name.replace("_", "-")
    if plain in ("cpu-bind", "mem-bind"):
        return plain
    starting = [option for option in every if name and option.startswith(name)]
    return starting[0] if len(starting) == 1 else name
