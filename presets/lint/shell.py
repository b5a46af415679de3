"""Parse shell scripts into commands, and find the commands that launch a training. No shell runs.

The parser reads quotes, continued lines, comments, here-documents, substitutions and groups: enough to see the programs
of a script and their environment. It never raises. A construct that it does not know ends a command.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

_HERE = re.compile(r"<<(-?)[ \t]*(['\"]?)([A-Za-z_][\w.-]*)\2")
_REDIRECTION = re.compile(r"(?:\d*|&)(?:>>?\|?|<>?)(.*)", re.DOTALL)
_OPENING = frozenset({"if", "while", "until", "for", "case", "select"})
_BRANCH = frozenset({"then", "else", "elif", "do"})
_CLOSING = frozenset({"fi", "done", "esac"})
_SKIPPED = frozenset({"!", "{", "}", "time", "in", *_BRANCH, *_CLOSING})
_ENDS = ";\n&|()"
MOST_DEPTH = 50
"""Deepest nesting of substitutions, and of branches."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word without its quotes. A `$…` in it is kept as written."""

    text: str
    line: int

    @property
    def literal(self) -> bool:
        """Return True if the shell would expand nothing in it."""
        return "$" not in self.text and "`" not in self.text


@dataclass(frozen=True, slots=True)
class Command:
    words: tuple[Word, ...]
    background: bool
    branch: tuple[int, ...]
    """Numbers of the enclosing branches of if, while, case…, the outermost first."""

    @property
    def line(self) -> int:
        return self.words[0].line


MOST_TEXT = 128 << 10
"""Longest text to read, in characters. Linux passes no longer argument to `bash -c`."""


@functools.lru_cache(maxsize=8)  # a plan reads one text several times
def read_commands(text: str, first_line: int = 1) -> Sequence[Command]:
    """Return the commands of a script in order, or none if the script is longer than MOST_TEXT."""
    if len(text) > MOST_TEXT:
        return []
    return _ShellReader(text.replace("\r\n", "\n"), first_line).commands()


class _ShellReader:
    def __init__(self, text: str, first_line: int) -> None:
        self._text, self._at, self._line = text, 0, first_line
        self._here: list[tuple[str, bool]] = []
        self._branch: list[int] = []
        self._branches = 0
        self._done: list[Command] = []
        self._since, self._groups = 0, list[int]()
        """Index in `_done` of the first command that an `&` would send to the background, and those of open groups."""
        self._background: Counter[int] = Counter()
        """Index in `_done` → change of the number of enclosing background lists."""
        self._joined = False
        """True after `|`, `&&` or `||`, which continue a list."""

    def commands(self) -> list[Command]:
        words: list[Word] = []
        while self._at < len(self._text):
            letter = self._text[self._at]
            if letter in _ENDS and not self._is_redirection(letter):
                self._command(words)
                self._end(letter, bool(words))
                words = []
            elif letter in " \t" or self._text.startswith("\\\n", self._at):
                self._skip(1 + (letter == "\\"))
            elif letter == "#":
                self._at = (self._text.find("\n", self._at) + 1 or len(self._text) + 1) - 1
            elif match := _HERE.match(self._text, self._at):
                self._here.append((match[3], bool(match[1])))
                self._at = match.end()
            else:
                words.append(self._word())
        self._command(words)
        depth = 0
        for place, command in enumerate(self._done):
            depth += self._background[place]
            if depth:
                self._done[place] = replace(command, background=True)
        return self._done

    def _is_redirection(self, letter: str) -> bool:
        return letter == "&" and self._text[self._at + 1 : self._at + 2] == ">"

    def _end(self, letter: str, any_words: bool) -> None:
        doubled = letter in "&|;" and self._text[self._at + 1 : self._at + 2] == letter
        self._skip(1 + doubled)
        if letter == "(":
            self._groups.append(self._since)
        elif letter == ")":
            self._since = self._groups.pop() if self._groups else self._since
        elif letter == "|" or (letter == "&" and doubled):
            self._joined = True
            return
        elif letter == "&":
            self._background[self._since] += 1
            self._since = len(self._done)
            self._background[self._since] -= 1
        elif not self._joined or any_words:
            self._since = len(self._done)
        self._joined = self._joined and letter == "\n" and not any_words
        if letter == "\n":
            for name, tabs in self._here:
                self._skip_document(name, tabs)
            self._here = []

    def _skip_document(self, name: str, tabs: bool) -> None:
        while self._at < len(self._text):
            end = self._text.find("\n", self._at)
            end = len(self._text) if end < 0 else end
            line = self._text[self._at : end]
            self._skip(end - self._at + 1)
            if (line.lstrip("\t") if tabs else line) == name:
                return

    def _skip(self, count: int) -> str:
        part = self._text[self._at : self._at + count]
        self._line += part.count("\n")
        self._at += count
        return part

    def _word(self) -> Word:
        line, parts = self._line, []
        while self._at < len(self._text):
            letter = self._text[self._at]
            before = self._text[self._at - 1 : self._at]
            if letter in " \t" or (letter in _ENDS and not (letter == "&" and before in ("<", ">"))):
                if letter == "(" and before == "=":  # an array
                    parts.append(self._group(0))
                    continue
                if not (letter == "&" and not parts and self._is_redirection(letter)):
                    break
            parts.append(self._part(letter))
        return Word("".join(parts), line)

    def _part(self, letter: str) -> str:
        """Return the next part of a word without its quotes."""
        match letter:
            case "\\":
                return self._skip(2)[1:].replace("\n", "")
            case "'":
                end = self._text.find("'", self._at + 1)
                end = len(self._text) if end < 0 else end
                return self._skip(end - self._at + 1)[1:].removesuffix("'")
            case '"':
                return self._double()
            case "$" if self._text.startswith("$(", self._at):
                return self._skip(1) + self._group(0)
            case "`":
                end = self._text.find("`", self._at + 1)
                return self._skip((len(self._text) if end < 0 else end) - self._at + 1)
        return self._skip(1)

    def _double(self) -> str:
        self._skip(1)
        parts: list[str] = []
        while self._at < len(self._text):
            letter = self._text[self._at]
            if letter == '"':
                self._skip(1)
                break
            if letter == "\\" and self._text[self._at + 1 : self._at + 2] in ("\n", '"', "\\", "$", "`"):
                parts.append(self._skip(2)[1:].replace("\n", ""))
            elif self._text.startswith("$(", self._at):
                parts.append(self._skip(1) + self._group(0))
            else:
                parts.append(self._skip(1))
        return "".join(parts)

    def _group(self, depth: int) -> str:
        """Return a parenthesized group with its parentheses."""
        parts = [self._skip(1)]
        while self._at < len(self._text):
            letter = self._text[self._at]
            if letter == "(" and depth < MOST_DEPTH:
                parts.append(self._group(depth + 1))
            elif letter == "'":
                end = self._text.find("'", self._at + 1)
                parts.append(self._skip((end if end > 0 else self._at) - self._at + 1))
            else:
                parts.append(self._skip(1))
                if letter == ")":
                    break
        return "".join(parts)

    def _command(self, words: list[Word]) -> None:
        """Append the command in these words without shell keywords and redirections."""
        begin = 0
        while begin < len(words) and words[begin].text in _SKIPPED | _OPENING:
            self._step(words[begin].text)
            if words[begin].text in ("for", "case", "select"):
                return
            begin += 1
        kept, skip = [], False
        for word in words[begin:]:
            match = _REDIRECTION.fullmatch(word.text)
            if match is None and not skip:
                kept.append(word)
            skip = match is not None and not match[1]
        if kept and kept[0].text:
            self._done.append(Command(tuple(kept), False, tuple(self._branch[:MOST_DEPTH])))

    def _step(self, word: str) -> None:
        """Enter a branch or group, change to its next branch, or leave it."""
        if word == "{":
            self._groups.append(self._since)
        elif word == "}" and self._groups:
            self._since = self._groups.pop()
        elif word in _CLOSING and self._branch:
            self._branch.pop()
        elif word in _OPENING or (word in ("else", "elif") and self._branch):
            if word not in _OPENING:
                self._branch.pop()
            self._branches += 1
            self._branch.append(self._branches)


Program = Literal["torchrun", "accelerate", "deepspeed"]

SUBCOMMANDS = {
    "conda": "run",
    "mamba": "run",
    "micromamba": "run",
    "uv": "run",
    "poetry": "run",
    "pixi": "run",
    "oumi": "distributed",
}
"""Programs that start another program by only one subcommand: `conda activate deepspeed` starts none."""
WRAPPERS = SUBCOMMANDS.keys() | {
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
    "setsid",
    "nsys",
    "script",
}
"""Programs that start the program after their options."""
NAMING = frozenset(
    {
        "-n",
        "--name",
        "-p",
        "--prefix",
        "-J",
        "--job-name",
        "-e",
        "--env",
        "--environment",
        "--with",
        "--extra",
        "--group",
        "-A",
        "--account",
        "--partition",
        "--container-name",
        "--container-image",
    }
)
"""Options of wrappers whose value is a name, which may equal that of a launcher."""
EXPORTS = frozenset({"export", "declare", "typeset", "local", "readonly"})
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
LONGEST = 200
"""Longest value, in characters, that replaces a variable."""
MOST_LAUNCHES = 100
"""Most launches to read per text."""
MOST_SPELLED = 20_000
"""Longest command line, in characters, to build from variables."""
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """The known context of a text. None means unknown."""

    file: str = ""
    """Name of the file in findings."""
    nnodes: int | None = None
    gpus: int | None = None
    """Per node."""
    env: Mapping[str, str] = field(default_factory=dict)
    every_node: bool = False
    """True if each node runs this text."""
    own_nodes: bool = False
    """True if no jobs of other users are on the nodes."""
    exists: Callable[[str], bool] | None = None
    """Return True if a file exists, by its path relative to the text's folder."""

    def at(self, line: int) -> str:
        return f"{self.file}:{line}" if self.file else f"line {line}"


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
    values = _certain(settings, env or {})
    whole = {setting.name: setting for setting in settings if " " in setting.value}
    values = {name: value for name, value in values.items() if name not in whole}
    launches = (call for command in commands for call in _all_launches(command, values, whole))
    return ShellText(text, commands, settings, list(itertools.islice(launches, MOST_LAUNCHES)))


def _all_launches(
    command: Command, values: Mapping[str, str], whole: Mapping[str, Setting]
) -> Iterator[LauncherCall]:
    """Yield the launchers that a command starts: directly, by `bash -c`, or by a variable that holds a command line."""
    yield from _launches(_expanded(command, values))
    texts = [word.text for word in command.words]
    inner = [
        (word.text, word.line)
        for shell_, option, word in zip(texts, texts[1:], command.words[2:], strict=False)
        if shell_ in ("bash", "sh") and option in ("-c", "-lc")
    ]
    if texts[0] not in ("echo", "printf", *EXPORTS) and not ASSIGNMENT.match(texts[0]):
        inner += _held(texts, whole)
    for text, line in inner:
        for nested in read_commands(text, line):
            yield from (replace(call, command=command) for call in _launches(_expanded(nested, values)))


def _held(texts: Sequence[str], whole: Mapping[str, Setting]) -> list[tuple[str, int]]:
    """Return the command lines in the variables of a command, with the lines that set them."""
    names: dict[str, None] = {}
    for text in texts:
        for match in _VARIABLE.finditer(text):
            names.setdefault(match[1] or match[2])
    held = [whole[name] for name in names if name in whole]
    return [(_spelled(setting.value, whole), setting.line) for setting in held[:5]]


def _spelled(value: str, whole: Mapping[str, Setting]) -> str:
    """Return a command line with its variables expanded."""
    for _ in range(2):
        longer = _VARIABLE.sub(
            lambda match: whole[name].value if (name := match[1] or match[2]) in whole else match[0], value
        )
        value = longer if len(longer) < MOST_SPELLED else value
    return value


def _settings(command: Command) -> Iterator[Setting]:
    """Yield the variables that a command sets: by an assignment, by export, or before a program."""
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
    """Return the variables that have one literal value in the whole text."""
    values: dict[str, str | None] = {**env}
    for setting in settings:
        unsure = "$" in setting.value or "`" in setting.value or len(setting.value) > LONGEST
        literal = None if unsure else setting.value
        values[setting.name] = literal if values.get(setting.name, literal) == literal else None
    return {name: value for name, value in values.items() if value is not None}


def _expanded(command: Command, values: Mapping[str, str]) -> Command:
    def put(match: re.Match[str]) -> str:
        return values.get(match[1] or match[2], match[0])

    words = tuple(replace(word, text=_VARIABLE.sub(put, word.text)) for word in command.words)
    return replace(command, words=words)


def _launches(command: Command) -> Iterator[LauncherCall]:
    """Yield the launcher that a command starts, if any."""
    for at in _starts(command.words):
        launcher = _program([word.text for word in command.words[at : at + 3]])
        if launcher is not None:
            program, count, legacy = launcher
            rest = command.words[at + count :]
            completed = any(word.text == "oumi" for word in command.words[: at + count])
            yield LauncherCall(program, rest, command, legacy, completed)
            return


def _starts(words: Sequence[Word]) -> Iterator[int]:
    """Yield each index that may begin a program: after assignments, and after wrappers.

    Values of a wrapper's options are skipped. A wrapper of SUBCOMMANDS starts nothing before its subcommand, which is
    `needed` until it is read.
    """
    at, needed, wrapped = 0, "", False
    while at < len(words):
        text, name = words[at].text, words[at].text.rsplit("/", 1)[-1]
        if name in WRAPPERS:
            wrapped, needed = True, SUBCOMMANDS.get(name, needed)
        elif needed and text == needed:
            needed = ""
        elif not needed and not ASSIGNMENT.match(text):
            yield at
            if not wrapped or _PYTHON.fullmatch(name):
                return
        at += 2 if wrapped and text in NAMING else 1


PROGRAMS: Mapping[str, Program] = {"torchrun": "torchrun", "deepspeed": "deepspeed"}
MODULES: Mapping[str, tuple[Program, bool]] = {
    "torch.distributed.run": ("torchrun", False),
    "torch.distributed.launch": ("torchrun", True),
    "accelerate.commands.launch": ("accelerate", False),
    "deepspeed.launcher.runner": ("deepspeed", False),
}
"""Module for `python -m` → its launcher, and True for torch's old one."""


def _program(texts: Sequence[str]) -> tuple[Program, int, bool] | None:
    """Return the launcher at the start of these words, how many words name it, and whether it is torch's old one."""
    name = texts[0].rsplit("/", 1)[-1] if texts else ""
    if name in PROGRAMS:
        return PROGRAMS[name], 1, False
    if name == "accelerate" and texts[1:2] == ["launch"]:
        return "accelerate", 2, False
    if _PYTHON.fullmatch(name) and texts[1:2] == ["-m"] and len(texts) > 2 and texts[2] in MODULES:
        program, legacy = MODULES[texts[2]]
        return program, 3, legacy
    return None
