"""A shell script as the commands that stand in it: no shell, but enough of one to see who starts what.

Quotes, continued lines, comments, here-documents, substitutions and groups are read; nothing is executed and nothing
raises: what cannot be understood ends a command.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_HERE = re.compile(r"<<(-?)[ \t]*(['\"]?)([A-Za-z_][\w.-]*)\2")
_REDIRECTION = re.compile(r"(?:\d*|&)(?:>>?\|?|<>?)(.*)", re.DOTALL)
_OPENING = frozenset({"if", "while", "until", "for", "case", "select"})
_BRANCH = frozenset({"then", "else", "elif", "do"})
_CLOSING = frozenset({"fi", "done", "esac"})
_SKIPPED = frozenset({"!", "{", "}", "time", "in", *_BRANCH, *_CLOSING})
_ENDS = ";\n&|()"
MOST_DEPTH = 50
"""Of substitutions inside each other."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word, its quotes removed; what a shell would put in for `$…` is left as it is written."""

    text: str
    line: int

    @property
    def known(self) -> bool:
        """Whether the shell would change nothing in it."""
        return "$" not in self.text and "`" not in self.text


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command."""

    words: tuple[Word, ...]
    background: bool
    branch: tuple[int, ...]
    """Numbers of the branches of if, while, case… that it stands in, the outermost first."""

    @property
    def line(self) -> int:
        return self.words[0].line


def read(text: str, first_line: int = 1) -> list[Command]:
    """The commands of a script, in order."""
    return _Reader(text.replace("\r\n", "\n"), first_line).commands()


class _Reader:
    def __init__(self, text: str, first_line: int) -> None:
        self._text, self._at, self._line = text, 0, first_line
        self._here: list[tuple[str, bool]] = []
        self._branch: list[int] = []
        self._branches = 0
        self._done: list[Command] = []
        self._since, self._groups = 0, list[int]()
        """Where in `_done` the list began that an `&` would send to the background; the same of open groups."""
        self._joined = False
        """Whether a list goes on behind `|`, `&&` or `||`."""

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
        return self._done

    def _is_redirection(self, letter: str) -> bool:
        return letter == "&" and self._text[self._at + 1 : self._at + 2] == ">"

    def _end(self, letter: str, any_words: bool) -> None:
        """Go past what ends a command."""
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
            self._done[self._since :] = [replace(one, background=True) for one in self._done[self._since :]]
            self._since = len(self._done)
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
        """The next piece of a word, quotes removed."""
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
        """What stands between double quotes."""
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
        """What stands between parentheses, with them."""
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
        """Add the command of some words, without the shell's own and without redirections."""
        while words and words[0].text in _SKIPPED | _OPENING:
            self._step(words[0].text)
            if words[0].text in ("for", "case", "select"):
                return
            words = words[1:]
        kept, skip = [], False
        for word in words:
            match = _REDIRECTION.fullmatch(word.text)
            if match is None and not skip:
                kept.append(word)
            skip = match is not None and not match[1]
        if kept and kept[0].text:
            self._done.append(Command(tuple(kept), False, tuple(self._branch)))

    def _step(self, word: str) -> None:
        """Into a branch or group, to the next one, or out of it."""
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
