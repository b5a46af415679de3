"""The command line: one verb a function. Nothing heavy is imported before a verb needs it."""

from __future__ import annotations

import argparse
import gc
import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NoReturn

from ..presets.finding import PresetError
from ..presets.sanitize import quoted
from ..presets.trusted_files import ignored
from ..runners.errors import RunError
from . import command_words, terminal, verb_guide
from .arguments import CHANGES, add_verbs, handed_over

EPILOG = """\
RUN is a run's name, id or unique prefix. Default: the only live run, else the newest run.
`distui help VERB` has the options of a verb, examples and its exit codes, of which these are all:
""" + "\n".join(f"  {code:<4} {text}" for code, text in verb_guide.MEANINGS.items())


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one sentence; its verbs are of this class too."""

    def format_help(self) -> str:
        """What it takes; of a verb also examples and exit codes."""
        _, _, verb = self.prog.partition(" ")
        return self.format_options() + (f"\n{verb_guide.guide_text(verb)}" if verb else "")

    def format_options(self) -> str:
        """What it takes alone."""
        return super().format_help()

    def print_help(self, file: Any = None) -> None:
        """As argparse's, which passes over what cannot be written."""
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        """Wrong usage ends with exit status 2."""
        sentence = command_words.choice_refusal(message, self.prog)
        terminal.complain(sentence or f"{message}; `{self.prog} --help` lists what it takes")
        self.exit(2)


class TopParser(Parser):
    """distui's own: `--help` has the verbs by what they are for."""

    verbs: Mapping[str, Parser]

    def format_help(self) -> str:
        """Usage, options, the verbs in groups, examples, the exit codes."""
        head, _, _ = super().format_help().partition(EPILOG)
        return f"{head}{command_words.grouped_help(self.verbs)}\n{command_words.EXAMPLES}\n\n{EPILOG}\n"


class ShowVersion(argparse.Action):
    """`--version`. Reading a package's metadata takes as long as everything else a verb imports."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        sys.stdout.write(f"distui {version('distui')}\n")
        parser.exit()


class UnusedParser:
    """Of a verb that was not typed: its options are not made."""

    def add(self, *_: Any, **__: Any) -> UnusedParser:
        """An option, a group of options, a default."""
        return self

    add_argument = add_argument_group = add_mutually_exclusive_group = set_defaults = add


class TypedVerb:
    """Makes the parser of one verb alone: those of all take as long as what most verbs do."""

    def __init__(self, verbs: Any, name: str) -> None:
        self._verbs, self._name = verbs, name

    def add_parser(self, name: str, **about: Any) -> argparse.ArgumentParser | UnusedParser:
        return self._verbs.add_parser(name, **about) if name == self._name else UnusedParser()


def parser(typed: str | None = None) -> TopParser:
    """The whole command line, or what of it is needed where one verb was typed."""
    top = TopParser(
        prog="distui",
        usage="distui [options] [VERB …]",
        description="The cockpit for distributed PyTorch training. Without a verb: the only live run, or the list.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("-V", "--version", action=ShowVersion, nargs=0, help="print the version and exit")
    top.add_argument("--readonly", action="store_true", help="allow nothing that changes a run")
    top.add_argument("--ascii", action="store_true", help="draw with ASCII characters only")
    top.set_defaults(verb="runs:open_cockpit", rest=None)
    verbs = top.add_subparsers(prog="distui", metavar="VERB", help=argparse.SUPPRESS, parser_class=Parser)
    add_verbs(verbs if typed is None else TypedVerb(verbs, typed))
    top.verbs = verbs.choices
    return top


def split_rest(argv: list[str]) -> tuple[list[str], list[str] | None]:
    """Everything behind the first `--` belongs to the user's command."""
    if "--" not in argv:
        return argv, None
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def parsed(words: list[str]) -> argparse.Namespace:
    """What the words mean. Raises WrongUsage."""
    verb = next((word for word in words if not word.startswith("-")), None)
    top = parser(verb)
    if verb is not None and verb not in top.verbs:
        raise command_words.WrongUsage(command_words.verb_refusal(verb, parser().verbs))
    options, unknown = top.parse_known_args(words)
    many = getattr(options, "many", None)
    if many and not any(
        word.startswith("-") for word in unknown
    ):  # argparse ends a list at the first option
        getattr(options, many).extend(unknown)
        unknown = []
    if unknown:
        used = top if verb is None else top.verbs[verb]
        prog = used.prog
        raise command_words.WrongUsage(command_words.option_refusal(unknown, prog, used.format_options()))
    if options.readonly and verb in CHANGES:
        raise command_words.WrongUsage(
            f"--readonly allows nothing that changes a run, as `distui {verb}` does: leave out one"
        )
    return options


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
        return int(_imported("distui.runners.agent.__main__").main(words[1:]))
    if "_ARGCOMPLETE" in os.environ and argv is None:  # a shell asks at Tab
        return int(_imported(".verbs.completion").answer(parser))
    terminal.complete()
    if argv is None:
        terminal.leave_in_order()
    for sentence in ignored(os.environ):
        terminal.complain(sentence)
    return terminal.guarded(lambda: _run(words, rest))


def _imported(name: str) -> Any:
    """A module; where garbage is not collected yet, it is from now on, and what was imported is passed over."""
    module = import_module(name, __package__)
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    return module


def _presumed_preset() -> str:
    return str(_imported("..runners.launch.launch_settings").load().preset)


def _run(words: list[str], rest: list[str] | None) -> int:
    try:
        words = [*words, *handed_over(os.environ)]
        if refusal := refused(words, rest or []):
            raise RunError(refusal)
        words, rest = command_words.understood(words, rest, os.path.isfile, _presumed_preset)
        options = parsed(words)
        options.rest = rest
        if rest is not None and not getattr(options, "takes_rest", False):
            raise RunError(f"`{' '.join(('distui', *words[:1]))}` takes nothing behind --")
        module, _, function = options.verb.partition(":")
        return int(getattr(_imported(f".verbs.{module}"), function)(options))
    except RunError as error:
        terminal.complain(error.sentence, error.details)
        return error.code
    except (PresetError, command_words.WrongUsage) as error:
        terminal.complain(str(error))
        return 2
    except FileNotFoundError:
        if terminal.working_directory():
            raise
        terminal.complain("the working directory has been removed: `cd` to another one")
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
