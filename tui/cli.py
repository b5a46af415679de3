"""The command line: one verb a function. Nothing heavy is imported before a verb needs it."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import NoReturn

from .arguments import add_verbs

EPILOG = """\
RUN is a name, an id or a unique prefix of one; left out, it is the only live run.
Exit codes: 0 done; 1 the run or the check failed; 2 wrong usage; 3 no such run; 4 cannot reach a node."""


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one sentence; its verbs are of this class too."""

    def error(self, message: str) -> NoReturn:
        """Wrong usage ends with exit status 2."""
        self.exit(2, f"distui: {message}; `{self.prog} --help` shows what there is\n")


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
        description="The cockpit for distributed PyTorch training. Without a verb: the list of runs, or the only one.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action=ShowVersion, nargs=0, help="print the version and leave")
    top.add_argument("--readonly", action="store_true", help="look only: nothing that changes a run")
    top.add_argument("--ascii", action="store_true", help="no glyphs outside ASCII")
    top.set_defaults(verb="cockpit:open_cockpit", rest=None)
    add_verbs(top.add_subparsers(metavar="VERB", title="verbs"))
    return top


def split_rest(argv: list[str]) -> tuple[list[str], list[str] | None]:
    """Everything behind the first `--` belongs to the user's command."""
    if "--" not in argv:
        return argv, None
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def main(argv: list[str] | None = None) -> int:
    """Run one verb and return the process's exit status; a user's mistake is one sentence on stderr."""
    words, rest = split_rest(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["agent"]:
        return int(import_module("distui.runners.agent.__main__").main(words[1:]))
    options = parser().parse_args(words)
    options.rest = rest
    if rest is not None and not getattr(options, "takes_rest", False):
        return fail(f"{' '.join(words[:1]) or 'distui'} takes nothing behind --", 2)
    module, _, function = options.verb.partition(":")
    from ..presets.errors import PresetError
    from ..runners.errors import RunError

    try:
        return int(getattr(import_module(f".verbs.{module}", __package__), function)(options))
    except RunError as error:
        return fail(str(error), error.code)
    except PresetError as error:
        return fail(str(error), 2)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 141


def fail(sentence: str, code: int) -> int:
    """Say what was wrong and return the exit status."""
    sys.stderr.write(f"distui: {sentence}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
