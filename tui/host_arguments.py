"""Options for runs on hosts that the user names. Imports nothing of distui."""

from __future__ import annotations

import argparse


def host_options(verb: argparse.ArgumentParser) -> None:
    """Which hosts, and how they are reached."""
    group = verb.add_argument_group(
        "hosts of your own", "reached by ssh; nothing but Python is needed there"
    )
    group.add_argument("--hosts", metavar="A,B,…", help="one node each, the first is the head")
    group.add_argument("--hostfile", metavar="FILE", help="the same, a line each: HOST [slots=8]")
    group.add_argument(
        "--head-addr",
        metavar="ADDRESS",
        help="of the first host, as the others reach it (default: as ssh does)",
    )
    _ssh_config(group)


def elsewhere(verb: argparse.ArgumentParser, many: bool = False) -> None:
    """`--host` of the verbs that look at the runs of another machine."""
    if many:
        verb.add_argument(
            "--host", action="append", metavar="NAME", help="that these keep, by ssh; repeatable"
        )
    else:
        verb.add_argument("--host", metavar="NAME", help="that this one keeps: its cockpit, through ssh")
    _ssh_config(verb)


def _ssh_config(options: argparse._ActionsContainer) -> None:
    options.add_argument("--ssh-config", metavar="FILE", help="instead of ~/.ssh/config")


def asked(options: argparse.Namespace) -> bool:
    """Whether the user named hosts."""
    return options.hosts is not None or options.hostfile is not None
