"""Find the programs that a shell text starts: launchers (torchrun, accelerate, deepspeed), Python, other shell texts.

A program may follow wrappers (srun, ssh, env, …). It may be in the text of `bash -c`, in a here-document, or in a
variable that holds a command line. The reader keeps the words in front of it, and the shell that expands each variable.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ..known_names import known_names
from .arithmetic import evaluated
from .shell import Command, HereDocument, Word, read_commands
from .slurm import launch_words, read_batch

EXPORTS = frozenset({"export", "declare", "typeset", "local", "readonly"})
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
LONGEST = 200
"""Longest value, in characters, that replaces a variable."""
MOST_LAUNCHES = 100
"""Most launches to read per text."""
MOST_SPELLED = 20_000
"""Longest command line, in characters, to build from variables."""
MOST_WORDS = 2_000
"""Most words of a command in which variables are replaced by options."""
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\}|\{(\w+):?-[^{}]*\})")
_LIST = re.compile(r"\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?\})")
_SHELL_OPTION = re.compile(r"-[a-z]*c")
_SHELL_FILE = re.compile(r"[^$`]+\.(sh|bash|slurm|sbatch)")

Program = Literal["torchrun", "accelerate", "deepspeed", "python", "script"]
LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
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
    later: frozenset[str] = frozenset()
    """Names in the value that quotes keep from the shell that assigns it."""
    command: Command | None = None

    @property
    def is_conditional(self) -> bool:
        return self.command is not None and self.command.is_conditional


@dataclass(frozen=True, slots=True)
class LauncherCall:
    """A launcher, `python`, or a shell script, as a command starts it."""

    program: Program
    words: tuple[Word, ...]
    """The words after the program's name (and `launch`); for a script with its path."""
    command: Command
    legacy: bool = False
    """torch.distributed.launch, which has other options."""
    completed: bool = False
    """True if a wrapper adds the numbers of nodes and ranks (`oumi distributed`)."""
    before: tuple[Word, ...] = ()
    """Assignments and wrappers in front of the program, those of enclosing commands first."""
    late: frozenset[str] = frozenset()
    """Names that an inner shell expands, which a wrapper starts (`srun bash -c '…'`)."""
    inner: Sequence[Setting] = ()
    """Assignments of the inner shell."""

    @property
    def line(self) -> int:
        return self.command.line

    @property
    def replaces(self) -> bool:
        """Return True if the launcher replaces the shell."""
        return self.command.words[0].text == "exec"

    @property
    def is_launcher(self) -> bool:
        return self.program in LAUNCHERS


@dataclass(frozen=True, slots=True)
class ShellText:
    text: str
    commands: Sequence[Command]
    settings: Sequence[Setting]
    launches: Sequence[LauncherCall]
    """The launchers."""
    started: Sequence[LauncherCall] = ()
    """The launchers, Python programs and shell scripts."""
    values: Mapping[str, str] = field(default_factory=dict)
    """The variables with one certain value."""
    written: Mapping[str, HereDocument] = field(default_factory=dict)
    """Files that `cat > FILE <<EOF` writes."""

    def setting(self, name: str) -> Setting | None:
        """Return the last assignment of a variable."""
        return next((one for one in reversed(self.settings) if one.name == name), None)


def read_script(text: str, first_line: int = 1, env: Mapping[str, str] | None = None) -> ShellText:
    """Parse a text. `env`: variables that are set when it starts. Never raises."""
    commands = read_commands(text, first_line)
    settings = [setting for command in commands for setting in _settings(command)]
    command_lines = {setting.name: setting for setting in settings if " " in setting.value}
    batch = read_batch(text, first_line)
    values = _certain(settings, {**(batch.slurm.environment() if batch else {}), **(env or {})})
    values = {name: value for name, value in values.items() if name not in command_lines}
    variables = _Variables(values, command_lines, _lists(settings, command_lines))
    calls = (call for command in commands for call in _calls(command, variables))
    started = list(itertools.islice(calls, MOST_LAUNCHES))
    launches = [call for call in started if call.is_launcher]
    written = {command.output: command.here for command in commands if command.output and command.here}
    return ShellText(text, commands, settings, launches, started, values, written)


@dataclass(frozen=True, slots=True)
class _Variables:
    values: Mapping[str, str]
    command_lines: Mapping[str, Setting]
    lists: Mapping[str, Sequence[Word]]
    """Variables that hold options or a command line → their words."""


def _settings(command: Command) -> Iterator[Setting]:
    """Yield the variables that a command sets: by an assignment, by export, or before a program."""
    words = command.words
    first = words[0].text
    is_export = first in EXPORTS
    exported = is_export or first == "env" or not ASSIGNMENT.match(words[-1].text)
    for word in words[1:] if is_export or first == "env" else words:
        match = ASSIGNMENT.match(word.text)
        if match:
            yield Setting(match[1], match[2], word.line, exported, word.later, command)
        elif not is_export:
            break


def _certain(settings: Sequence[Setting], env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that have one literal value in the whole text."""
    values: dict[str, str | None] = {
        name: None if "$" in value or "`" in value else value for name, value in env.items()
    }
    for setting in settings:
        known = (
            {name: value for name, value in values.items() if value is not None}
            if "$" in setting.value
            else {}
        )
        value = evaluated(replaced(setting.value, known, setting.later), known)
        unsure = "$" in value or "`" in value or len(value) > LONGEST
        literal = None if unsure else value
        values[setting.name] = literal if values.get(setting.name, literal) == literal else None
    return {name: value for name, value in values.items() if value is not None}


def _lists(settings: Sequence[Setting], command_lines: Mapping[str, Setting]) -> dict[str, list[Word]]:
    """Return the words of each variable that is assigned once (or appended to) and holds options or a command line."""
    lists: dict[str, list[Word]] = {}
    assigned: dict[str, int] = {}
    for setting in settings:
        is_array, is_more = setting.value.startswith("("), _is_appended(setting)
        text, later = setting.value, setting.later
        if is_array:
            text = text[1:].removesuffix(")")
        else:
            text, inner = _spelled(text, command_lines)
            later |= inner
        assigned[setting.name] = assigned.get(setting.name, 0) + (not is_more)
        commands = read_commands(text) if is_array or is_more or " " in text or text.startswith("-") else ()
        if is_array or len(commands) == 1:
            words = [word for command in commands for word in command.words]
            held = [Word(word.text, setting.line, later) for word in words[:MOST_WORDS]]
            lists.setdefault(setting.name, []).extend(held)
    return {name: words for name, words in lists.items() if assigned[name] <= 1 and len(words) < MOST_WORDS}


def _is_appended(setting: Setting) -> bool:
    """Return True for `NAME+=…`."""
    words = setting.command.words if setting.command else ()
    return any(word.text.startswith(f"{setting.name}+=") for word in words)


def _calls(command: Command, variables: _Variables) -> Iterator[LauncherCall]:
    """Yield what a command starts: directly, by an inner shell, or by a variable that holds a command line."""
    expanded = _expanded(command, variables)
    yield from _direct(expanded)
    for text, line, late in _inner_texts(expanded, variables.command_lines):
        nested_commands = read_commands(text, line)
        inner = [setting for nested in nested_commands for setting in _settings(nested)]
        own = {setting.name for setting in inner}
        values = {name: value for name, value in variables.values.items() if name not in own}
        known = _Variables(_certain(inner, values), {}, variables.lists)
        for nested in nested_commands:
            for call in _direct(_expanded(nested, known)):
                before = (*_outer_words(expanded), *call.before)
                yield replace(call, command=command, before=before, late=late, inner=inner)


def _outer_words(command: Command) -> tuple[Word, ...]:
    """Return the words of a command up to the text of its inner shell."""
    for at, word in enumerate(command.words):
        if " " in word.text.strip() or "\n" in word.text:
            return command.words[:at]
    return command.words


def _inner_texts(
    command: Command, command_lines: Mapping[str, Setting]
) -> Iterator[tuple[str, int, frozenset[str]]]:
    """Yield the texts that a command gives to a shell: text, line, and the names that this shell expands."""
    for word in _texts_of_shells(command.words):
        text, later = _spelled(word.text, command_lines)
        yield text, word.line, word.later | later
    remote = launch_words()["starters"]["remote"]
    if command.here and any(_is_shell(word) or word.text in remote for word in command.words):
        yield plain_document(command.here)


def plain_document(here: HereDocument) -> tuple[str, int, frozenset[str]]:
    """Return the text of a here-document, its first line, and the names that its reader expands."""
    if here.is_literal:
        names = frozenset(match[1] or match[2] or match[3] for match in _VARIABLE.finditer(here.text))
        return here.text, here.line, names
    names = frozenset(re.findall(r"\\\$\{?(\w+)", here.text))
    return here.text.replace("\\$", "$"), here.line, names


def _texts_of_shells(words: Sequence[Word]) -> Iterator[Word]:
    """Yield the text of `bash -c TEXT`, and of `ssh HOST TEXT`."""
    is_remote = False
    for at, word in enumerate(words):
        if _is_shell(word) and words[at + 2 :] and _SHELL_OPTION.fullmatch(words[at + 1].text):
            yield words[at + 2]
            return
        if is_remote and " " in word.text:
            yield word
            return
        is_remote = is_remote or word.text in launch_words()["starters"]["remote"]


def _is_shell(word: Word) -> bool:
    return word.text.rpartition("/")[2] in launch_words()["starters"]["shells"]


def _spelled(value: str, command_lines: Mapping[str, Setting]) -> tuple[str, frozenset[str]]:
    """Return a command line with its variables expanded, two levels deep, and the names that quotes in these keep."""
    later: set[str] = set()

    def expanded(match: re.Match[str]) -> str:
        setting = command_lines.get(match[1] or match[2] or "")
        if setting is None or setting.name in later:
            return match[0]
        later.update(setting.later)
        return setting.value

    for _ in range(2):
        longer = _VARIABLE.sub(expanded, value)
        value = longer if len(longer) < MOST_SPELLED else value
    return value, frozenset(later)


def replaced(text: str, values: Mapping[str, str], later: frozenset[str] = frozenset()) -> str:
    """Return a text with the variables replaced that have a certain value."""

    def expanded(match: re.Match[str]) -> str:
        name = match[1] or match[2] or match[3]
        return match[0] if name in later else values.get(name, match[0])

    return _VARIABLE.sub(expanded, text) if "$" in text else text


def _expanded(command: Command, variables: _Variables) -> Command:
    """Return a command with its certain variables replaced, and its lists of words in place of their names."""
    if not any("$" in word.text for word in command.words):
        return command
    words: list[Word] = []
    for word in command.words:
        match = _LIST.fullmatch(word.text)
        held = variables.lists.get(match[1] or match[2]) if match else None
        is_text = bool(words) and _SHELL_OPTION.fullmatch(words[-1].text) is not None
        if held and not is_text and len(words) < MOST_WORDS:
            words += (_word(one, variables.values) for one in held)
        else:
            words.append(_word(word, variables.values))
    return replace(command, words=tuple(words))


def _word(word: Word, values: Mapping[str, str]) -> Word:
    if "$" not in word.text:
        return word
    return replace(word, text=evaluated(replaced(word.text, values), values))


def _direct(command: Command) -> Iterator[LauncherCall]:
    """Yield the program that a command starts, if it is one of those that lint knows."""
    for at in _starts(command.words):
        started = _program([word.text for word in command.words[at : at + 4]], at > 0)
        if started is not None:
            program, count, legacy = started
            completed = any(word.text == "oumi" for word in command.words[: at + count])
            words = command.words[at + count :]
            yield LauncherCall(program, words, command, legacy, completed, command.words[:at])
            return


def _starts(words: Sequence[Word]) -> Iterator[int]:
    """Yield each index that may begin a program: after assignments, and after wrappers.

    Values of a wrapper's options are skipped. Some wrappers start nothing before their subcommand.
    """
    known = known_names("starters")
    subcommands: Mapping[str, str] = known["subcommands"]
    more = launch_words()["starters"]
    wrappers = {"eval", *known["wrappers"], *subcommands, *more["remote"], *more["containers"]}
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


def _program(texts: Sequence[str], is_wrapped: bool) -> tuple[Program, int, bool] | None:
    """Return the program at the start of these words, how many words name it, and whether it is torch's old launcher."""
    name = texts[0].rpartition("/")[2]
    if name == "torchrun":
        return "torchrun", 1, False
    if name == "deepspeed" and (texts[1:] or not is_wrapped):
        return "deepspeed", 1, False
    if name == "accelerate" and texts[1:2] == ["launch"]:
        return "accelerate", 2, False
    if _PYTHON.fullmatch(name):
        options = list(itertools.takewhile(lambda text: text in ("-u", "-O"), texts[1:]))
        following = texts[1 + len(options) :]
        if following[:1] == ["-m"] and following[1:] and following[1] in MODULES:
            program, legacy = MODULES[following[1]]
            return program, 3 + len(options), legacy
        return "python", 1, False
    if (
        name in launch_words()["starters"]["shells"]
        and _SHELL_OPTION.fullmatch((texts[1:2] or [""])[0]) is None
    ):
        is_file = next((text for text in texts[1:] if not text.startswith("-")), "")
        return ("script", 1, False) if is_file else None
    return ("script", 0, False) if _SHELL_FILE.fullmatch(texts[0]) else None


def flags_of(words: Sequence[Word]) -> dict[str, Word]:
    """Return the options by name with `_`, and their values. Options of the script are included."""
    flags: dict[str, Word] = {}
    for at, word in enumerate(words):
        if word.text.startswith("-"):
            name, equals, value = word.text.lstrip("-").partition("=")
            following = Word(value, word.line) if equals else next(iter(words[at + 1 : at + 2]), word)
            flags.setdefault(name.replace("-", "_"), following)
    return flags
