"""Find the commands of a shell text that start a training with torchrun, accelerate or deepspeed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..known_names import known_names
from .shell import Command, Word, read_commands

EXPORTS = frozenset({"export", "declare", "typeset", "local", "readonly"})
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
LONGEST = 200
"""Longest value, in characters, that replaces a variable."""
MOST_LAUNCHES = 100
"""Most launches to read per text."""
MOST_SPELLED = 20_000
"""Longest command line, in characters, to build from variables."""
MOST_HELD = 5
"""Most variables with a command line to follow per command."""
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")

Program = Literal["torchrun", "accelerate", "deepspeed"]
MODULES: Mapping[str, tuple[Program, bool]] = {
    "torch.distributed.run": ("torchrun", False),
    "torch.distributed.launch": ("torchrun", True),
    "accelerate.commands.launch": ("accelerate", False),
    "deepspeed.launcher.runner": ("deepspeed", False),
}
"""Module for `python -m` → its launcher, and True for torch's old one."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable assignment of the text."""

    name: str
    value: str
    line: int
    exported: bool


@dataclass(frozen=True, slots=True)
class LauncherCall:
    program: Program
    words: tuple[Word, ...]
    """The words after the program's name (and `launch`)."""
    command: Command
    legacy: bool = False
    """torch.distributed.launch, which has other options."""
    completed: bool = False
    """True if a wrapper adds the numbers of nodes and ranks (`oumi distributed`)."""

    @property
    def line(self) -> int:
        return self.command.line

    @property
    def replaces(self) -> bool:
        """Return True if the launcher replaces the shell."""
        return self.command.words[0].text == "exec"


@dataclass(frozen=True, slots=True)
class ShellText:
    text: str
    commands: Sequence[Command]
    settings: Sequence[Setting]
    launches: Sequence[LauncherCall]


def read_script(text: str, first_line: int = 1, env: Mapping[str, str] | None = None) -> ShellText:
    """Parse a text. `env`: variables that are set when it starts. Never raises."""
    commands = read_commands(text, first_line)
    settings = [setting for command in commands for setting in _settings(command)]
    command_lines = {setting.name: setting for setting in settings if " " in setting.value}
    values = _certain(settings, env or {})
    values = {name: value for name, value in values.items() if name not in command_lines}
    launches = (call for command in commands for call in _calls(command, values, command_lines))
    return ShellText(text, commands, settings, list(itertools.islice(launches, MOST_LAUNCHES)))


def _settings(command: Command) -> Iterator[Setting]:
    """Yield the variables that a command sets: by an assignment, by export, or before a program."""
    words = command.words
    first = words[0].text
    is_export = first in EXPORTS
    exported = is_export or first == "env" or not ASSIGNMENT.match(words[-1].text)
    for word in words[1:] if is_export or first == "env" else words:
        match = ASSIGNMENT.match(word.text)
        if match:
            yield Setting(match[1], match[2], word.line, exported)
        elif not is_export:
            break


def _certain(settings: Sequence[Setting], env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that have one literal value in the whole text."""
    values: dict[str, str | None] = {**env}
    for setting in settings:
        unsure = "$" in setting.value or "`" in setting.value or len(setting.value) > LONGEST
        literal = None if unsure else setting.value
        values[setting.name] = literal if values.get(setting.name, literal) == literal else None
    return {name: value for name, value in values.items() if value is not None}


def _calls(
    command: Command, values: Mapping[str, str], command_lines: Mapping[str, Setting]
) -> Iterator[LauncherCall]:
    """Yield the launchers that a command starts: directly, by `bash -c`, or by a variable that holds a command line."""
    yield from _direct(_expanded(command, values))
    for text, line in [*_inline(command.words), *_held(command.words, command_lines)]:
        for nested in read_commands(text, line):
            yield from (replace(call, command=command) for call in _direct(_expanded(nested, values)))


def _inline(words: Sequence[Word]) -> Iterator[tuple[str, int]]:
    """Yield the text of `bash -c TEXT` and its line."""
    for shell, option, word in zip(words, words[1:], words[2:], strict=False):
        if shell.text in ("bash", "sh") and option.text in ("-c", "-lc"):
            yield word.text, word.line


def _held(words: Sequence[Word], command_lines: Mapping[str, Setting]) -> Iterator[tuple[str, int]]:
    """Yield the command lines in the variables of a command, with the lines that set them."""
    first = words[0].text
    if first in ("echo", "printf", *EXPORTS) or ASSIGNMENT.match(first):
        return
    found = (match for word in words for match in _VARIABLE.finditer(word.text))
    names = dict.fromkeys(match[1] or match[2] for match in found)
    held = (command_lines[name] for name in names if name in command_lines)
    for setting in itertools.islice(held, MOST_HELD):
        yield _spelled(setting.value, command_lines), setting.line


def _spelled(value: str, command_lines: Mapping[str, Setting]) -> str:
    """Return a command line with its variables expanded, two levels deep."""

    def expanded(match: re.Match[str]) -> str:
        setting = command_lines.get(match[1] or match[2])
        return setting.value if setting else match[0]

    for _ in range(2):
        longer = _VARIABLE.sub(expanded, value)
        value = longer if len(longer) < MOST_SPELLED else value
    return value


def _expanded(command: Command, values: Mapping[str, str]) -> Command:
    def expanded(match: re.Match[str]) -> str:
        return values.get(match[1] or match[2], match[0])

    words = (replace(word, text=_VARIABLE.sub(expanded, word.text)) for word in command.words)
    return replace(command, words=tuple(words))


def _direct(command: Command) -> Iterator[LauncherCall]:
    """Yield the launcher that a command starts, if any."""
    for at in _starts(command.words):
        launcher = _program([word.text for word in command.words[at : at + 3]])
        if launcher is not None:
            program, count, legacy = launcher
            completed = any(word.text == "oumi" for word in command.words[: at + count])
            yield LauncherCall(program, command.words[at + count :], command, legacy, completed)
            return


def _starts(words: Sequence[Word]) -> Iterator[int]:
    """Yield each index that may begin a program: after assignments, and after wrappers.

    Values of a wrapper's options are skipped. Some wrappers start nothing before their subcommand.
    """
    known = known_names("starters")
    subcommands: Mapping[str, str] = known["subcommands"]
    wrappers = {*known["wrappers"], *subcommands}
    subcommand, is_wrapped, option = "", False, ""
    for at, word in enumerate(words):
        if is_wrapped and option in known["naming"]:
            option = ""  # this word is its value
            continue
        option = word.text
        name = word.text.rpartition("/")[2]
        if name in wrappers:
            is_wrapped, subcommand = True, subcommands.get(name, subcommand)
        elif word.text == subcommand:
            subcommand = ""
        elif not subcommand and not ASSIGNMENT.match(word.text):
            yield at
            if not is_wrapped or _PYTHON.fullmatch(name):
                return


def _program(texts: Sequence[str]) -> tuple[Program, int, bool] | None:
    """Return the launcher at the start of these words, how many words name it, and whether it is torch's old one."""
    name = texts[0].rpartition("/")[2]
    if name == "torchrun":
        return "torchrun", 1, False
    if name == "deepspeed":
        return "deepspeed", 1, False
    if name == "accelerate" and texts[1:2] == ["launch"]:
        return "accelerate", 2, False
    if _PYTHON.fullmatch(name) and texts[1:2] == ["-m"] and len(texts) > 2 and texts[2] in MODULES:
        program, legacy = MODULES[texts[2]]
        return program, 3, legacy
    return None


def flags_of(words: Sequence[Word]) -> dict[str, Word]:
    """Return the options by name with `_`, and their values. Options of the script are included."""
    flags: dict[str, Word] = {}
    for at, word in enumerate(words):
        if word.text.startswith("-"):
            name, equals, value = word.text.lstrip("-").partition("=")
            following = Word(value, word.line) if equals else next(iter(words[at + 1 : at + 2]), word)
            flags.setdefault(name.replace("-", "_"), following)
    return flags
