"""The command line: one verb a function. Nothing heavy is imported before a verb needs it."""

from __future__ import annotations

import argparse
import os
import re
import sys
from importlib import import_module
from typing import NoReturn

from ..presets.finding import PresetError
from ..presets.sanitize import quoted
from ..presets.trusted_files import ignored
from ..runners.errors import RunError
from . import terminal
from .arguments import add_verbs

EPILOG = """\
RUN is a run's name, id or unique prefix. Default: the only live run, else the newest run.
Exit codes: 0 done; 1 the run or the check failed; 2 wrong usage; 3 no such run; 4 agent or node unreachable;
5 a command was sent but its answer was lost (`distui status` shows its effect); 6 `wait`: the run is lost;
124 `wait --timeout` expired; 130 interrupted; 141 the reader of stdout has gone."""


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one sentence; its verbs are of this class too."""

    def error(self, message: str) -> NoReturn:
        """Wrong usage ends with exit status 2."""
        terminal.complain(f"{message}; `{self.prog} --help` lists what it takes")
        self.exit(2)


class ShowVersion(argparse.Action):
    """`--version`. Reading a package's metadata takes as long as everything else a verb imports."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        sys.stdout.write(f"distui {version('distui')}\n")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = Parser(
        prog="distui",
        description="The cockpit for distributed PyTorch training. Without a verb: the only live run, or the list.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action=ShowVersion, nargs=0, help="print the version and exit")
    top.add_argument("--readonly", action="store_true", help="allow nothing that changes a run")
    top.add_argument("--ascii", action="store_true", help="draw with ASCII characters only")
    top.set_defaults(verb="runs:open_cockpit", rest=None)
    add_verbs(top.add_subparsers(metavar="VERB", title="verbs"))
    return top


def split_rest(argv: list[str]) -> tuple[list[str], list[str] | None]:
    """Everything behind the first `--` belongs to the user's command."""
    if "--" not in argv:
        return argv, None
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def refused(words: list[str], rest: list[str]) -> str:
    """Why these words cannot be what is meant, as a sentence; "" where nothing is wrong with them."""
    empty = next((word for word in words if re.fullmatch(r"--[\w-]+=--", word)), None)
    if empty is not None:  # argparse would take the -- for no value at all
        return f"{empty}: -- is no value; it stands alone, before the script"
    for word in (*words, *rest):
        try:
            word.encode()
        except UnicodeEncodeError:
            return f"{quoted(word)} is not UTF-8 text, which every plan and command is: rename it, or leave it out"
    return ""


def main(argv: list[str] | None = None) -> int:
    """Run one verb and return the process's exit status; a user's mistake is one sentence on stderr."""
    words, rest = split_rest(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["agent"]:
        return int(import_module("distui.runners.agent.__main__").main(words[1:]))
    terminal.complete()
    if argv is None:
        terminal.leave_in_order()
    for sentence in ignored(os.environ):
        terminal.complain(sentence)
    return terminal.guarded(lambda: _run(words, rest))


def _run(words: list[str], rest: list[str] | None) -> int:
    try:
        if refusal := refused(words, rest or []):
            raise RunError(refusal)
        options = parser().parse_args(words)
        options.rest = rest
        if rest is not None and not getattr(options, "takes_rest", False):
            raise RunError(f"`{' '.join(('distui', *words[:1]))}` takes nothing behind --")
        module, _, function = options.verb.partition(":")
        return int(getattr(import_module(f".verbs.{module}", __package__), function)(options))
    except RunError as error:
        terminal.complain(error.sentence, error.details)
        return error.code
    except PresetError as error:
        terminal.complain(str(error))
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
