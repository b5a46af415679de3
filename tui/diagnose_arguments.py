"""What diagnose, dump, export and replay take. Imports nothing else of distui."""

from __future__ import annotations

import argparse
from typing import Any

from .counts import count


def diagnose_verb(verbs: Any) -> None:
    """`distui diagnose FILE… | RUN`."""
    summary = "what logs of NCCL and torch say is wrong, and since when"
    verb = verbs.add_parser(
        "diagnose",
        help=summary,
        usage="distui diagnose [FILE… | BUNDLE | RUN] [--json]",
        description=summary,
    )
    verb.add_argument(
        "names", nargs="*", metavar="FILE|RUN",
        help="log files (also .gz; - is standard input), a bundle of `distui export`, or a run",
    )  # fmt: skip
    verb.add_argument("--json", action="store_true", help="JSON on stdout and nothing else")
    verb.set_defaults(verb="diagnose:diagnose")


def dump_verb(verbs: Any) -> None:
    """`distui dump RUN stacks|flight|memory`."""
    summary = "what the ranks are doing: stacks, flight recorder, memory"
    verb = verbs.add_parser("dump", help=summary, description=summary)
    verb.add_argument("run", nargs="?", metavar="RUN")
    verb.add_argument("what", choices=("stacks", "flight", "memory"))
    verb.add_argument(
        "--rank", type=count, action="append", default=[], metavar="N", help="only this rank; repeatable"
    )
    verb.add_argument("--raw", action="store_true", help="as each rank answered, not merged")
    verb.add_argument("--out", metavar="DIR", help="write each rank's answer into a file there, too")
    verb.add_argument(
        "--record", action="store_true", help="memory: have torch record allocations for later snapshots"
    )
    verb.add_argument("--json", action="store_true", help="JSON on stdout and nothing else")
    verb.set_defaults(verb="dump:dump")


def bundle_verbs(verbs: Any) -> None:
    """`distui export RUN FILE`, `distui replay FILE|RUN`."""
    summary = "a run as one file that another person opens with `distui replay`"
    verb = verbs.add_parser("export", help=summary, description=summary)
    verb.add_argument("run", metavar="RUN")
    verb.add_argument("file", metavar="FILE", help="to be written, as in run.tar.gz")
    verb.add_argument(
        "--logs",
        type=count,
        default=4,
        metavar="MiB",
        help="of the end of each log (default: 4; the first 256 KiB too)",
    )
    verb.add_argument("--force", action="store_true", help="replace FILE where it is there")
    verb.add_argument("--json", action="store_true", help="JSON on stdout and nothing else")
    verb.set_defaults(verb="export:export")
    verb = verbs.add_parser("replay", help="open the record of a run that has ended, or a bundle")
    verb.add_argument("run", nargs="?", metavar="FILE|RUN", help="a bundle of `distui export`, or a run")
    verb.add_argument("--readonly", action="store_true", default=argparse.SUPPRESS, help="look only")
    verb.set_defaults(verb="cockpit:replay")
