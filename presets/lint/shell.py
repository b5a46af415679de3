"""Parse shell scripts into commands. No shell runs.

The parser reads quotes, continued lines, comments, here-documents, substitutions and groups: enough to see the programs
of a script, their environment, and which shell expands a variable. It never raises. A construct that it does not know
ends a command.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

_BLANK = re.compile(r"(?:[ \t]|\\\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_HERE = re.compile(r"<<(-?)[ \t]*(['\"]?)([A-Za-z_][\w.-]*)\2")
_LINE = re.compile(r"[^\n]*\n?")
_OPERATOR = re.compile(r"&&|\|[|&]?|;;|[;()\n]|&(?!>)")
_JOINING = ("|", "|&", "||", "&&")
"""Operators that let a list continue on the next line."""

_REDIRECTS = re.compile(r"&?>|<")
_BEGUN_REDIRECTION = re.compile(r"\d*[<>&|]*")
_PLAIN = re.compile(
    r"""
    &>                          # redirection of stdout and stderr
    |>[&|]?                     # redirection of output: > >& >|
    |<&?                        # redirection of input: < <&
    |`[^`]*`?                   # command substitution in backquotes
    |\$(?!\()                   # the $ of a variable; $( begins a group
    |[^ \t\n;&|()<>'"\\`$]+     # other characters without a meaning for the shell
    """,
    re.VERBOSE,
)
"""Part of a word that stays as written."""
_ESCAPED = re.compile(r"\\([\s\S]?)")
_SINGLE = re.compile(r"'([^']*)'?")
_QUOTE = re.compile('"')
_QUOTED_ESCAPE = re.compile(r"\\([\n\"\\$`])")
_QUOTED = re.compile(r"[^\"\\$]+|[\\$]")
_GROUP = re.compile(r"\$\(")
_ARRAY = re.compile(r"(?<==)\(")
_IN_GROUP = re.compile(r"[^()']+|'[^']*'|[()']")
"""Next part of a group: plain text, a quoted text (whose parentheses do not count), or a parenthesis or lone quote."""

_REDIRECTION = re.compile(r"(?:\d*|&)(?:>>?\|?|<>?)(.*)", re.DOTALL)
_NAMES = re.compile(r"\$\{?[#!]?(\w+)|\$(\(\s*[\w./-]+)|`(\w+)")
"""A variable, or the program of a command substitution."""
_OPENING = frozenset({"if", "while", "until", "for", "case", "select"})
_NEXT_BRANCH = frozenset({"else", "elif"})
_CLOSING = frozenset({"fi", "done", "esac"})
_KEYWORDS = frozenset({"!", "{", "}", "time", "in", "then", "do"}) | _OPENING | _NEXT_BRANCH | _CLOSING
NOTHING: frozenset[str] = frozenset()
MOST_HEADER = 500
"""Longest header of a branch to keep, in characters."""
MOST_DEPTH = 50
"""Most enclosing branches to keep per command."""
MOST_TEXT = 128 << 10
"""Longest text to read, in characters. Linux passes no longer argument to `bash -c`."""


def names_in(text: str) -> list[str]:
    """Return the variables in a text, and the programs of its command substitutions as `(name`."""
    if "$" not in text and "`" not in text:
        return []
    return [_name(match) for match in _NAMES.finditer(text)]


def _name(match: re.Match[str]) -> str:
    return match[1] or (match[2] or f"({match[3]}").replace(" ", "")


@dataclass(frozen=True, slots=True)
class Word:
    """One word without its quotes. A `$…` in it is kept as written."""

    text: str
    line: int
    later: frozenset[str] = frozenset()
    """Variables, and programs of substitutions as `(name`, that quotes keep from this shell."""

    @property
    def literal(self) -> bool:
        """Return True if it has no variable and no command substitution, so that its value is known.

        Quotes are removed, so that a `$` in single quotes counts as a variable, too.
        """
        return "$" not in self.text and "`" not in self.text


@dataclass(eq=False, slots=True)
class HereDocument:
    """The lines that follow a command as its input, up to the line `name`."""

    name: str
    may_be_indented: bool
    """True if tabs may precede the last line (`<<-`)."""
    is_literal: bool
    """True if this shell expands nothing in it (`<<'EOF'`)."""
    text: str = ""
    line: int = 0
    """Line of the first line of `text`."""


@dataclass(eq=False, slots=True)
class Branch:
    """One branch of an if, a case or a loop."""

    keyword: str
    header: str = ""
    """The condition, or the words of the loop."""
    is_open: bool = True
    """True while the header is read."""
    line: int = 0

    @property
    def is_loop(self) -> bool:
        return self.keyword in ("for", "while", "until", "select")


@dataclass(frozen=True, slots=True)
class Command:
    words: tuple[Word, ...]
    background: bool
    branch: tuple[Branch, ...]
    """The enclosing branches of if, while, case…, the outermost first."""
    here: HereDocument | None = None
    output: str = ""
    """The file that receives its output, as written."""

    @property
    def in_loop(self) -> bool:
        return any(branch.is_loop for branch in self.branch)

    @property
    def is_conditional(self) -> bool:
        return any(not branch.is_loop for branch in self.branch)

    @property
    def line(self) -> int:
        return self.words[0].line


@functools.lru_cache(maxsize=8)  # a plan reads one text several times
def read_commands(text: str, first_line: int = 1) -> Sequence[Command]:
    """Return the commands of a script in order, or none if the script is longer than MOST_TEXT."""
    if len(text) > MOST_TEXT:
        return []
    return _CommandReader().read(_Scanner(text.replace("\r\n", "\n"), first_line).tokens())


def unclosed(text: str, first_line: int = 1) -> Branch | None:
    """Return the innermost if, loop or case that a script does not end, or None."""
    if len(text) > MOST_TEXT:
        return None
    reader = _CommandReader()
    reader.read(_Scanner(text.replace("\r\n", "\n"), first_line).tokens())
    return reader.open_branch


class _Scanner:
    """Splits a text into words and operators."""

    def __init__(self, text: str, first_line: int) -> None:
        self._text, self._at, self._line = text, 0, first_line
        self._here_documents: list[HereDocument] = []
        """Here-documents after this line."""
        self._later: set[str] = set()
        """Names in quotes of the current word."""

    def tokens(self) -> Iterator[Word | HereDocument | str]:
        """Yield words, here-documents (whose text follows later), and operators as texts."""
        last: Word | str = ""
        while self._at < len(self._text):
            if self._next(_BLANK) or self._next(_COMMENT):
                continue
            if match := self._next(_HERE):
                document = HereDocument(match[3], bool(match[1]), bool(match[2]))
                self._here_documents.append(document)
                yield document
                continue
            operator = self._next(_OPERATOR)
            token = operator[0] if operator else self._word()
            if token == "\n":
                self._skip_here_documents()
            if token != "\n" or last not in _JOINING:
                last = token
                yield token

    def _next(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Advance past a match at the current position. Return None and stay if there is none."""
        match = pattern.match(self._text, self._at)
        if match:
            self._line += match[0].count("\n")
            self._at = match.end()
        return match

    def _skip_here_documents(self) -> None:
        for document in self._here_documents:
            document.line, lines = self._line, list[str]()
            while self._at < len(self._text) and (match := self._next(_LINE)):
                line = match[0].removesuffix("\n")
                if document.name == (line.lstrip("\t") if document.may_be_indented else line):
                    break
                lines.append(match[0])
            document.text = "".join(lines)
        self._here_documents = []

    def _word(self) -> Word:
        line, parts = self._line, list[str]()
        self._later = set()
        while not (parts and self._is_redirected(parts)) and (part := self._part()) is not None:
            parts.append(part)
        return Word("".join(parts), line, frozenset(self._later) if self._later else NOTHING)

    def _keep(self, text: str) -> None:
        """Note the names in a text that this shell does not expand."""
        self._later.update(names_in(text))

    def _keep_next(self) -> None:
        """Note the name after an escaped `$`."""
        match = _NAMES.match(self._text, self._at - 1)
        if match:
            self._keep(match[0])

    def _is_redirected(self, parts: Sequence[str]) -> bool:
        """Return True if a redirection follows a word without a blank, as in `a>log` and `cat<<EOF`."""
        if _HERE.match(self._text, self._at):
            return True
        if not _REDIRECTS.match(self._text, self._at):
            return False
        is_redirection = len(parts) <= 3 and _BEGUN_REDIRECTION.fullmatch("".join(parts))
        return not is_redirection  # "2>>" is one word

    def _part(self) -> str | None:
        """Return the next part of a word without its quotes, or None at the end of the word."""
        if match := self._next(_PLAIN):
            return match[0]
        if match := self._next(_SINGLE):
            self._keep(match[1])
            return match[1]
        if match := self._next(_ESCAPED):
            self._keep_next()
            return match[1].replace("\n", "")
        if self._next(_QUOTE):
            return self._quoted()
        if match := self._next(_GROUP) or self._next(_ARRAY):
            return match[0] + self._group()
        return None

    def _quoted(self) -> str:
        """Return a text up to its closing double quote."""
        parts: list[str] = []
        while not self._next(_QUOTE):
            if match := self._next(_QUOTED_ESCAPE):
                self._keep_next()
                parts.append(match[1].replace("\n", ""))
            elif match := self._next(_GROUP):
                parts.append(match[0] + self._group())
            elif match := self._next(_QUOTED):
                parts.append(match[0])
            else:
                break
        return "".join(parts)

    def _group(self) -> str:
        """Return the rest of a parenthesized group with its closing parenthesis."""
        begin, depth = self._at, 1
        while depth and (match := self._next(_IN_GROUP)):
            if match[0] == "(":
                depth += 1
            elif match[0] == ")":
                depth -= 1
        return self._text[begin : self._at]


class _CommandReader:
    """Builds commands from words and operators."""

    def __init__(self) -> None:
        self._done: list[Command] = []
        self._list_start = 0
        """Index in `_done` of the first command of the current list, which an `&` sends to the background."""
        self._groups: list[int] = []
        """`_list_start` of the list around each open group."""
        self._background: list[tuple[int, int]] = []
        """Ranges in `_done` of commands in the background."""
        self._branch: list[Branch] = []
        """The open branches, the outermost first."""
        self._is_pattern = False
        """True in the pattern of a case, up to its `)`."""
        self._here: HereDocument | None = None
        """The last here-document of the current command."""

    @property
    def open_branch(self) -> Branch | None:
        """Return the innermost open branch."""
        return self._branch[-1] if self._branch else None

    def read(self, tokens: Iterable[Word | HereDocument | str]) -> list[Command]:
        words: list[Word] = []
        for token in tokens:
            if isinstance(token, Word):
                words.append(token)
            elif isinstance(token, HereDocument):
                self._here = token
            else:
                self._command(words)
                self._operator(token)
                words = []
        self._command(words)
        return self._with_background()

    def _with_background(self) -> list[Command]:
        """Return the commands, marked if a range of `_background` contains them. Ranges may be nested."""
        # changes[i]: ranges that begin at command i, minus ranges that end before it. Their running sum counts the
        # ranges around each command.
        changes = [0] * (len(self._done) + 1)
        for begin, end in self._background:
            changes[begin] += 1
            changes[end] -= 1
        depths = itertools.accumulate(changes)
        return [
            replace(command, background=True) if depth > 0 else command
            for command, depth in zip(self._done, depths, strict=False)
        ]

    def _operator(self, operator: str) -> None:
        if self._is_pattern:
            self._is_pattern = operator != ")"
        elif operator == "(":
            self._groups.append(self._list_start)
        elif operator == ")":
            self._leave_group()
        elif operator not in _JOINING:
            if operator == "&":
                self._background.append((self._list_start, len(self._done)))
            self._list_start = len(self._done)
            if operator == ";;" and self._branch and self._branch[-1].keyword == "case":
                self._branch[-1] = Branch("case", self._branch[-1].header, False, self._branch[-1].line)
                self._is_pattern = True

    def _leave_group(self) -> None:
        if self._groups:
            self._list_start = self._groups.pop()

    def _command(self, words: Sequence[Word]) -> None:
        """Append the command in these words without shell keywords and redirections."""
        here, self._here = self._here, None
        begin = 0
        while begin < len(words) and words[begin].text in _KEYWORDS:
            keyword = words[begin].text
            begin += 1
            self._keyword(keyword, words[begin - 1].line)
            if keyword in ("for", "case", "select"):
                self._branch[-1].header = " ".join(word.text for word in words[begin:])
                self._is_pattern = keyword == "case"
                self._branch[-1].is_open = keyword != "case"
                return
        kept, output = _without_redirections(words[begin:])
        if kept and kept[0].text and not self._is_pattern:
            self._done.append(Command(kept, False, tuple(self._branch[:MOST_DEPTH]), here, output))
            if self._branch and self._branch[-1].is_open:
                branch, condition = self._branch[-1], " ".join(word.text for word in kept)
                branch.header = f"{branch.header} {condition}"[:MOST_HEADER].strip()

    def _keyword(self, word: str, line: int) -> None:
        """Enter a branch or group, change to its next branch, or leave it."""
        if word == "{":
            self._groups.append(self._list_start)
        elif word == "}":
            self._leave_group()
        elif word in _OPENING:
            self._branch.append(Branch(word, line=line))
        elif self._branch:
            self._change_branch(word, line)

    def _change_branch(self, word: str, line: int) -> None:
        """End the current branch or its header."""
        if word in _NEXT_BRANCH:
            self._branch[-1] = Branch(word, is_open=word == "elif", line=line)
        elif word in _CLOSING:
            self._is_pattern = False
            self._branch.pop()
        elif word in ("then", "do"):
            self._branch[-1].is_open = False


def _without_redirections(words: Sequence[Word]) -> tuple[tuple[Word, ...], str]:
    """Return the words without redirections and their targets (`2>log` is one word, `> log` are two), and the output."""
    kept, is_target, output = [], False, ""
    for word in words:
        redirection = _REDIRECTION.fullmatch(word.text)
        if redirection is None and not is_target:
            kept.append(word)
        elif ">" in word.text and redirection:
            output = redirection[1]
        elif is_target:
            output = output or word.text
        is_target = redirection is not None and not redirection[1]
    return tuple(kept), output
