"""What a shell text starts, and in which environment."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from . import shell
from .shell import Command, Word

Program = Literal["torchrun", "accelerate", "deepspeed"]

WRAPPERS = frozenset(
    {
        *(
            "exec",
            "nohup",
            "time",
            "env",
            "sudo",
            "nice",
            "srun",
            "mpirun",
            "mpiexec",
            "numactl",
            "stdbuf",
            "timeout",
        ),
        *("uv", "poetry", "conda", "micromamba", "pixi", "oumi", "command", "setsid", "nsys", "script"),
    }
)
"""Programs that start the one that follows, behind options of their own."""
EXPORTS = frozenset({"export", "declare", "typeset", "local", "readonly"})
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
LONGEST = 200
"""Letters of a value that is put in where its variable stands."""
MOST_LAUNCHES = 100
"""Of a text: more are not looked at."""
MOST_SPELLED = 20_000
"""Letters of a command line that is put together from variables."""
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What is known of where a text runs. None: nothing."""

    file: str = ""
    """As it is named in a finding."""
    nnodes: int | None = None
    gpus: int | None = None
    """Of each node."""
    env: Mapping[str, str] = field(default_factory=dict)
    every_node: bool = False
    """Whether each node runs this same text."""
    own_nodes: bool = False
    """Whether nobody else's jobs are on the nodes."""
    exists: Callable[[str], bool] | None = None
    """Whether there is a file of that name, seen from where the text is."""

    def at(self, line: int) -> str:
        """The place of a line."""
        return f"{self.file}:{line}" if self.file else f"line {line}"


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable that the text sets."""

    name: str
    value: str
    line: int
    exported: bool


@dataclass(frozen=True, slots=True)
class Launch:
    """A launcher that the text starts."""

    program: Program
    words: tuple[Word, ...]
    """Behind the program's name (and `launch`)."""
    command: Command
    legacy: bool = False
    """torch.distributed.launch, which has options of its own."""
    completed: bool = False
    """Whether a wrapper adds the numbers of nodes and ranks (`oumi distributed`)."""

    @property
    def line(self) -> int:
        return self.command.line

    @property
    def replaces(self) -> bool:
        """Whether the shell itself becomes the launcher."""
        return self.command.words[0].text == "exec"


@dataclass(frozen=True, slots=True)
class Script:
    """A whole text."""

    text: str
    commands: Sequence[Command]
    settings: Sequence[Setting]
    launches: Sequence[Launch]


def read(text: str, first_line: int = 1, env: Mapping[str, str] | None = None) -> Script:
    """What a text says. `env`: variables that are set when it starts. Never raises."""
    commands = shell.read(text, first_line)
    settings = [one for command in commands for one in _settings(command)]
    values = _certain(settings, env or {})
    whole = {one.name: one for one in settings if " " in one.value}
    values = {name: value for name, value in values.items() if name not in whole}
    launches = (one for command in commands for one in _all_launches(command, values, whole))
    return Script(text, commands, settings, list(itertools.islice(launches, MOST_LAUNCHES)))


def _all_launches(
    command: Command, values: Mapping[str, str], whole: Mapping[str, Setting]
) -> Iterator[Launch]:
    """The launcher that a command starts itself, by `bash -c`, or by a variable that holds a whole command line."""
    yield from _launches(_expanded(command, values))
    texts = [word.text for word in command.words]
    inner = [(word.text, word.line) for shell_, option, word in zip(texts, texts[1:], command.words[2:], strict=False)
             if shell_ in ("bash", "sh") and option in ("-c", "-lc")]  # fmt: skip
    if texts[0] not in ("echo", "printf") and not ASSIGNMENT.match(texts[0]) and texts[0] not in EXPORTS:
        used = {match[1] or match[2]: None for word in texts for match in _VARIABLE.finditer(word)}
        inner += [(_spelled(whole[name].value, whole), whole[name].line) for name in used if name in whole][
            :5
        ]
    for text, line in inner:
        for one in shell.read(text, line):
            yield from (replace(found, command=command) for found in _launches(_expanded(one, values)))


def _spelled(value: str, whole: Mapping[str, Setting]) -> str:
    """A command line with those in it that it is made of."""
    for _ in range(2):
        longer = _VARIABLE.sub(
            lambda match: whole[name].value if (name := match[1] or match[2]) in whole else match[0], value
        )
        value = longer if len(longer) < MOST_SPELLED else value
    return value


def _settings(command: Command) -> Iterator[Setting]:
    """Assignments alone, with export, or in front of a command."""
    words = command.words
    exported = words[0].text in EXPORTS or not ASSIGNMENT.match(words[-1].text) or words[0].text == "env"
    for word in words[words[0].text in (*EXPORTS, "env") :]:
        match = ASSIGNMENT.match(word.text)
        if match is None:
            if words[0].text in EXPORTS:
                continue
            break
        yield Setting(match[1], match[2], word.line, exported)


def _certain(settings: Sequence[Setting], env: Mapping[str, str]) -> dict[str, str]:
    """Variables that have one literal value in the whole text."""
    values: dict[str, str | None] = {**env}
    for one in settings:
        unsure = "$" in one.value or "`" in one.value or len(one.value) > LONGEST
        literal = None if unsure else one.value
        values[one.name] = literal if values.get(one.name, literal) == literal else None
    return {name: value for name, value in values.items() if value is not None}


def _expanded(command: Command, values: Mapping[str, str]) -> Command:
    def put(match: re.Match[str]) -> str:
        return values.get(match[1] or match[2], match[0])

    words = tuple(replace(word, text=_VARIABLE.sub(put, word.text)) for word in command.words)
    return replace(command, words=words)


def _launches(command: Command) -> Iterator[Launch]:
    """The launcher that a command starts, if it does."""
    words = list(command.words)
    wrapped = False
    while words and (ASSIGNMENT.match(words[0].text) or words[0].text.rsplit("/", 1)[-1] in WRAPPERS):
        wrapped = wrapped or not ASSIGNMENT.match(words[0].text)
        words.pop(0)
    for at in range(len(words) if wrapped else 1):
        found = _program(words[at:])
        if found is not None:
            program, rest, legacy = found
            completed = any(word.text == "oumi" for word in command.words[: -len(rest) or None])
            yield Launch(program, tuple(rest), command, legacy, completed)
            return


def _program(words: Sequence[Word]) -> tuple[Program, Sequence[Word], bool] | None:
    """The launcher with which `words` begin."""
    texts = [word.text for word in words[:3]]
    name = texts[0].rsplit("/", 1)[-1] if texts else ""
    if name == "torchrun":
        return "torchrun", words[1:], False
    if name == "deepspeed":
        return "deepspeed", words[1:], False
    if name == "accelerate" and texts[1:2] == ["launch"]:
        return "accelerate", words[2:], False
    if _PYTHON.fullmatch(name) and texts[1:2] == ["-m"] and len(texts) > 2:
        if texts[2] in ("torch.distributed.run", "torch.distributed.launch"):
            return "torchrun", words[3:], texts[2].endswith("launch")
        if texts[2] == "accelerate.commands.launch":
            return "accelerate", words[3:], False
        if texts[2] == "deepspeed.launcher.runner":
            return "deepspeed", words[3:], False
    return None
