"""The command line: parse the words, and call the function of the verb. Imports only modules that every verb needs."""

from __future__ import annotations

import argparse
import gc
import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NoReturn

from .. import __version__
from ..presets.base_dirs import ignored
from ..presets.finding import PresetError
from ..presets.sanitize import quoted
from ..runners.run.errors import RunError
from . import command_words, terminal, verb_guide
from .arguments import Verb, add_verb, handed_over
from .verb_table import COCKPIT, VERBS

EPILOG = """\
RUN is a run's name, id or unique prefix. Default: the only live run, else the newest run.
`distui help VERB` has the options of a verb, examples and its exit codes, of which these are all:
""" + "\n".join(f"  {code:<4} {text}" for code, text in verb_guide.MEANINGS.items())


class Parser(argparse.ArgumentParser):
    """The parser of a verb: its errors are one sentence."""

    def format_help(self) -> str:
        """Return usage and options; for a verb also examples and exit codes."""
        _, _, verb = self.prog.partition(" ")
        return self.format_options() + (f"\n{verb_guide.guide_text(verb)}" if verb else "")

    def format_options(self) -> str:
        """Return usage and options."""
        return super().format_help()

    def print_help(self, file: Any = None) -> None:
        """Write the help. Unlike argparse, raise OSError if the stream is closed."""
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        """Print one sentence and exit with status 2."""
        sentence = command_words.choice_refusal(message, self.prog)
        terminal.complain(sentence or f"{message}; `{self.prog} --help` lists what it takes")
        self.exit(2)


class TopParser(Parser):
    """The parser of `distui`: its help lists the verbs in groups."""

    verbs: Mapping[str, Parser]

    def format_help(self) -> str:
        """Return usage, options, the verbs in groups, examples and exit codes."""
        head, _, _ = super().format_help().partition(EPILOG)
        return f"{head}{verb_guide.overview()}\n\n{EPILOG}\n"


class ShowVersion(argparse.Action):
    """`--version`."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        sys.stdout.write(f"distui {__version__}\n")
        parser.exit()


def parser(typed: str | None = None) -> TopParser:
    """Make the parser of the command line with the typed verb, without any (""), or with all of them (None).

    All parsers take as long as most verbs do.
    """
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
    top.set_defaults(declaration=COCKPIT, rest=None)
    verbs = top.add_subparsers(prog="distui", metavar="VERB", help=argparse.SUPPRESS, parser_class=Parser)
    for name, verb in VERBS.items():
        if typed in (None, name):
            add_verb(verbs, name, verb)
    top.verbs = verbs.choices
    return top


def split_rest(argv: list[str]) -> tuple[list[str], list[str] | None]:
    """Split the words at the first `--`: what follows is the user's command, or None without a `--`."""
    if "--" not in argv:
        return argv, None
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def _refusal_of(verb: str, before: list[str]) -> str:
    """Return why a word is no verb. It may be the value of an unknown option, which are the words `before` it."""
    top = parser(None)
    _, unknown = top.parse_known_args(before)
    if unknown:
        return command_words.option_refusal(unknown, top.prog, top.format_options())
    return command_words.verb_refusal(verb, VERBS)


def parsed(words: list[str]) -> argparse.Namespace:
    """Parse the words before `--`. Raises WrongUsage."""
    verb = next((word for word in words if not word.startswith("-")), None)
    if verb is not None and verb not in VERBS:
        raise command_words.WrongUsage(_refusal_of(verb, words[: words.index(verb)]))
    top = parser(verb or "")
    options, unknown = top.parse_known_args(words)
    declared: Verb = options.declaration
    list_argument = declared.list_argument
    if list_argument and not any(word.startswith("-") for word in unknown):
        # argparse ends the list of a positional argument at the first option
        setattr(options, list_argument, [*getattr(options, list_argument), *unknown])
    elif unknown:
        used = top if verb is None else top.verbs[verb]
        refusal = command_words.option_refusal(unknown, used.prog, used.format_options())
        raise command_words.WrongUsage(refusal)
    if options.readonly and declared.changes_runs:
        raise command_words.WrongUsage(
            f"--readonly allows nothing that changes a run, as `distui {verb}` does: leave out one"
        )
    return options


def refused(words: list[str], rest: list[str]) -> str:
    """Return a sentence that says why no verb can take these words; "" if nothing is wrong with them."""
    empty = next((word for word in words if re.fullmatch(r"--[\w-]+=--", word)), None)
    if empty is not None:  # argparse would read the -- as a missing value
        return f"{empty}: -- is not a value; it separates the options from the script"
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
    if "_ARGCOMPLETE" in os.environ and argv is None:  # a shell's completion calls distui
        return int(_imported(".verbs.completion").answer(parser))
    terminal.complete()
    if argv is None:
        terminal.leave_in_order()
    for sentence in ignored(os.environ):
        terminal.complain(sentence)
    return terminal.guarded(lambda: _run(words, rest))


def _imported(name: str) -> Any:
    """Import a module, and turn the garbage collector on for everything that is allocated later."""
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
        if rest is not None and not options.declaration.has_command:
            raise RunError(f"`{' '.join(('distui', *words[:1]))}` takes nothing after --")
        module, _, function = options.declaration.function.partition(":")
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
