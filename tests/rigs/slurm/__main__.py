"""`python -m tests.rigs.slurm up|down|guard|status|prepare|run|ssh|crash|boot|unplug|plug`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from .cluster import Cluster
from .owned import guard
from .prepare import prepare
from .settings import Places, Shape, Trouble


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m tests.rigs.slurm", description=__doc__)
    verbs = made.add_subparsers(dest="verb", required=True)
    verbs.add_parser("prepare", help="fetch what the rig needs; the only part that uses the network")
    up = verbs.add_parser("up", help="bring the rig up, or boot what is off")
    up.add_argument("--nodes", type=int, default=None, help="compute nodes (2)")
    up.add_argument("--gpus", type=int, default=None, help="pretended H100 per node (8)")
    up.add_argument(
        "--jobs", action="store_true", default=None, help="SkyPilot's managed jobs: 1.5 GB more"
    )
    up.add_argument("--proctrack", choices=("linuxproc", "cgroup"), default=None)
    up.add_argument("--api", action="store_true", help="start SkyPilot's API server too (13 s)")
    verbs.add_parser("down", help="end everything and remove the rig's folder")
    verbs.add_parser("guard", help="`down` once stdin has ended: for a process that is killed")
    verbs.add_parser("status", help="what is up")
    for verb, what in (
        ("run", "a command in the client"),
        ("ssh", "ssh in the client: a host's name, options…"),
    ):
        verbs.add_parser(verb, help=what).add_argument("words", nargs=argparse.REMAINDER)
    on = verbs.add_parser("on", help="a command in a host, by its namespaces")
    on.add_argument("host")
    on.add_argument("words", nargs=argparse.REMAINDER)
    for verb, what in (
        ("crash", "cut a host's power"),
        ("boot", "power a host on"),
        ("unplug", "pull a host's network cable"),
        ("plug", "put it back"),
    ):
        verbs.add_parser(verb, help=what).add_argument("host")
    return made


def become(cluster: Cluster, host: str, words: list[str]) -> None:
    """Turn this process into a command in a host, with this terminal and, where the host has it, this folder."""
    argv = words[1:] if words[:1] == ["--"] else words
    if not argv:
        raise Trouble("which command? `run -- COMMAND…`")
    here = Path.cwd()
    command = cluster.command(host, argv, here if host == "client" and inside(cluster, here) else None)
    os.execvpe(command[0], command, cluster.environment(host))


def inside(cluster: Cluster, folder: Path) -> bool:
    """Whether the client has that folder."""
    return cluster.client(["test", "-d", folder]).returncode == 0


def status(cluster: Cluster) -> None:
    """What is up, a line a host. Raises Trouble when nothing is."""
    if not cluster.hosts:
        raise Trouble(f"no rig is up in {cluster.places.folder}")
    states = cluster.states() if cluster.is_up("login") else {}
    for host in cluster.hosts:
        power = "on" if cluster.is_up(host) else "off"
        print(f"{host:8} {cluster.address(host):12} {power:4} {states.get(host, '')}".rstrip())


def wanted(options: argparse.Namespace) -> Shape | None:
    """The shape asked for; None when nothing was said of it."""
    names = ("nodes", "gpus", "jobs", "proctrack")
    said = {name: value for name in names if (value := getattr(options, name)) is not None}
    return Shape(**said) if said else None


def do(options: argparse.Namespace) -> None:
    """Carry out one verb."""
    cluster = Cluster()
    if options.verb == "prepare":
        prepare(Places())
    elif options.verb == "up":
        cluster.up(wanted(options))
        if options.api:
            cluster.start_api()
        status(cluster)
    elif options.verb == "down":
        cluster.down()
    elif options.verb == "guard":
        guard(cluster.places)
    elif options.verb == "status":
        status(cluster)
    elif options.verb in ("run", "on"):
        become(cluster, getattr(options, "host", "client"), options.words)
    elif options.verb == "ssh":
        become(cluster, "client", ["ssh", *options.words])
    else:
        accident: Callable[[str], None] = getattr(cluster, options.verb)
        accident(options.host)


def main() -> int:
    """The exit status: 0, or 1 with one sentence."""
    try:
        do(parser().parse_args())
    except Trouble as trouble:
        print(f"rig: {trouble}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
