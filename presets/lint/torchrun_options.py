"""Parse the options of a torchrun command line as its parser does."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..finding import Finding
from ..launchers.torchrun_names import SHORT, known_options
from ..spelling import nearest
from ..text_formats import whole
from .lint_rules import issue
from .shell import Word
from .slurm import launch_words


@dataclass(slots=True)
class Options:
    """The options of a command line before the script."""

    values: dict[str, Word] = field(default_factory=dict)
    switches: dict[str, Word] = field(default_factory=dict)
    unknown: list[Word] = field(default_factory=list)
    opaque: bool = False
    """True if a variable may hold further options."""
    script: Word | None = None

    def number(self, name: str) -> int | None:
        """Return the whole number of an option, or None."""
        word = self.values.get(name)
        return whole(word.text) if word else None

    def literal(self, name: str) -> str:
        """Return the value of an option, or "" if it is missing or contains variables."""
        word = self.values.get(name)
        return word.text if word and word.literal else ""


def read_options(words: Sequence[Word]) -> Options:
    """Parse the options of `words`, which follow the program's name."""
    made, left = Options(), deque(words)
    while left:
        word = left.popleft()
        text = word.text
        if text == "--":
            made.script = left[0] if left else None
            break
        if not text.startswith("-"):
            if word.literal or text.endswith(".py"):
                made.script = word
                break
            made.opaque = True  # "$OPTIONS", or a script's name: the next word decides
            if not left or not left[0].text.startswith("-"):
                break
            continue
        if len(text) > 1:
            _take(made, word, left)
    return made


SHORT_SWITCHES = {"-m": "module", "-h": "help"}


def _take(made: Options, word: Word, left: deque[Word]) -> None:
    """Read one option, and its value from the remaining words."""
    name, equals, value = word.text.partition("=")
    if name in SHORT_SWITCHES:
        made.switches[SHORT_SWITCHES[name]] = word
        return
    short = SHORT.get(name[:2]) if not name.startswith("--") else None
    full = short or _full_option(name)
    if full in known_options().switches:
        made.switches[full] = word
    elif full in known_options().values:
        if equals:
            made.values[full] = Word(value, word.line)
        elif short and len(name) > 2:
            made.values[full] = Word(name[2:], word.line)
        elif left:
            made.values[full] = left.popleft()
    else:
        _take_unknown(made, word, left)


def _take_unknown(made: Options, word: Word, left: deque[Word]) -> None:
    name, equals, _ = word.text.partition("=")
    if "$" in name:
        made.opaque = True
    elif made.opaque:  # an option of a script whose name is in a variable
        left.clear()
    else:
        made.unknown.append(word)
        if left and not left[0].literal:  # its value, or the script: the rest is ambiguous
            made.opaque = True
            left.clear()
        if not equals and len(left) > 1 and not left[0].text.startswith("-") and not _is_script(left[0]):
            left.popleft()  # its value, as far as the parser can know


def _is_script(word: Word) -> bool:
    return word.text.endswith((".py", ".sh"))


def _full_option(name: str) -> str:
    """Return the option that argparse matches to `name`: itself, or the only one with this prefix, or ""."""
    if not name.startswith("--"):
        return ""
    plain = name[2:].replace("_", "-")
    if plain in known_options().all:
        return plain
    starting = [option for spelling, option in _spellings() if plain and spelling.startswith(name[2:])]
    return starting[0] if len(starting) == 1 else ""


@functools.cache
def _spellings() -> list[tuple[str, str]]:
    """Return the spellings of each option with the option. argparse treats two spellings of one as ambiguous."""
    known = known_options().all
    return [(spelling, option) for option in known for spelling in {option, option.replace("-", "_")}]


def unknown_option(name: str, where: str) -> Finding:
    """Report an option that torchrun does not have, with the most similar one."""
    plain = name.lstrip("-").partition("=")[0].replace("_", "-")
    right = launch_words()["foreign"]["torchrun"].get(plain.replace("-", "_"), "")
    near = right or nearest(plain, sorted(known_options().all), 0.7)
    text = f"torchrun has no option {name} and ends with an error."
    return issue("L3", where, text, value=name, near=near and f"--{near}")
