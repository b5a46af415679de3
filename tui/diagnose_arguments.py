"""What diagnose takes. Imports nothing of distui."""

from __future__ import annotations

from typing import Any


def diagnose_verb(verbs: Any) -> None:
    """`distui diagnose FILE… | RUN`."""
    summary = "what logs of NCCL and torch say is wrong, and since when"
    verb = verbs.add_parser(
        "diagnose", help=summary, usage="distui diagnose [FILE… | RUN] [--json]", description=summary
    )
    verb.add_argument("names", nargs="*", metavar="FILE|RUN", help="log files, or a run on this machine")
    verb.add_argument("--json", action="store_true", help="JSON on stdout and nothing else")
    verb.set_defaults(verb="diagnose:diagnose")
