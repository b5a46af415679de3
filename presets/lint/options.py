"""The options of torchrun, read as its own parser would."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field

from .nodes import whole
from .shell import Word

VALUES = frozenset(
    {
        *(
            "nnodes",
            "nproc-per-node",
            "rdzv-backend",
            "rdzv-endpoint",
            "rdzv-id",
            "rdzv-conf",
            "max-restarts",
        ),
        *("monitor-interval", "start-method", "event-log-handler", "role", "log-dir", "redirects", "tee"),
        *("local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters", "node-rank"),
        *("master-addr", "master-port", "local-addr", "logs-specs", "numa-binding", "signals-to-handle"),
        *("shutdown-timeout", "log-line-prefix-template"),
    }
)
"""Options with a value, of torch 2.7 to 2.15; `_` does for `-`."""
SWITCHES = frozenset(
    {"standalone", "module", "no-python", "run-path", "virtual-local-rank", "print-completion", "help"}
)
NEWER = frozenset({"log-line-prefix-template", "print-completion"})
"""Those that torch 2.13 does not have yet."""
SHORT = {"-r": "redirects", "-t": "tee"}


@dataclass(slots=True)
class Options:
    """What a command line says in front of the script."""

    values: dict[str, Word] = field(default_factory=dict)
    switches: dict[str, Word] = field(default_factory=dict)
    unknown: list[Word] = field(default_factory=list)
    opaque: bool = False
    """Whether a variable may hold further options."""
    script: Word | None = None

    def number(self, name: str) -> int | None:
        """The whole number of an option, None where there is none."""
        word = self.values.get(name)
        return whole(word.text) if word else None

    def known(self, name: str) -> str:
        """The value of an option, "" where there is none or a shell has still to make it."""
        word = self.values.get(name)
        return word.text if word and word.known else ""


def read(words: Sequence[Word]) -> Options:
    """The options of `words`, which follow the program's name."""
    made, left = Options(), list(words)
    while left:
        word = left.pop(0)
        text = word.text
        if text == "--":
            made.script = left[0] if left else None
            break
        if not text.startswith("-"):
            if word.known or text.endswith(".py"):
                made.script = word
                break
            made.opaque = True  # "$OPTIONS", or a script's name: what follows is told by the next word
            if not any(one.text.startswith("-") for one in left[:1]):
                break
            continue
        if len(text) > 1:
            _take(made, word, left)
    return made


def _take(made: Options, word: Word, left: list[Word]) -> None:
    """One option, and its value from what is left."""
    name, equals, value = word.text.partition("=")
    if name in ("-m", "-h"):
        made.switches["module" if name == "-m" else "help"] = word
        return
    short = SHORT.get(name[:2]) if not name.startswith("--") else None
    full = short or _full(name)
    if full in SWITCHES:
        made.switches[full] = word
    elif full in VALUES:
        attached = equals or (short and len(name) > 2)
        text = value if equals else name[2:]
        taken = Word(text, word.line) if attached else left.pop(0) if left else None
        if taken is not None:
            made.values[full] = taken
    elif "$" in name:
        made.opaque = True
    elif made.opaque:  # of a script whose name is in a variable
        left.clear()
    else:
        made.unknown.append(word)
        if left and not left[0].known:  # its value, or the script: what follows is not told apart
            made.opaque = True
            left.clear()
        if not equals and left[1:] and not left[0].text.startswith("-") and not _script(left[0]):
            left.pop(0)  # its value, as far as one can tell


def _script(word: Word) -> bool:
    return word.text.endswith((".py", ".sh"))


def _full(name: str) -> str:
    """The option that argparse takes `name` for: itself, or the only one that begins so; "" for none."""
    if not name.startswith("--"):
        return ""
    plain = name[2:].replace("_", "-")
    if plain in VALUES | SWITCHES:
        return plain
    spellings = {one: known for known in VALUES | SWITCHES for one in (known, known.replace("-", "_"))}
    starting = [known for one, known in spellings.items() if plain and one.startswith(name[2:])]
    return starting[0] if len(starting) == 1 else ""  # argparse takes two spellings for an ambiguity


def nearest(name: str) -> str:
    """The option that is meant by an unknown one, with `--`; "" where none is near."""
    plain = name.lstrip("-").partition("=")[0].replace("_", "-")
    near = difflib.get_close_matches(plain, sorted(VALUES | SWITCHES), n=1, cutoff=0.7)
    return f"--{near[0]}" if near else ""
