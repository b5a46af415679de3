"""Options for runs on nodes that SkyPilot brings, and the verbs for what it brought. Imports nothing of distui."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

Verbs = Any  # argparse has no public name for what add_subparsers returns


def minutes(text: str) -> int | None:
    """Minutes of an option, None for "off". Raises ArgumentTypeError."""
    if text == "off":
        return None
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) < 10**6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes: write 1 or more, or off")
    return int(text)


def cloud_options(verb: argparse.ArgumentParser) -> None:
    """What the nodes should be; asked for with `--on` other than local, or by any of these."""
    group = verb.add_argument_group("nodes through SkyPilot", "with --on sky (the cheapest), or --on INFRA")
    group.add_argument(
        "--task", metavar="FILE", help="a SkyPilot task of your own instead of PRESET and SCRIPT"
    )
    group.add_argument("--gpus", metavar="NAME:N", help="accelerators of each node, as in H100:8")
    group.add_argument("--cpus", metavar="N|N+", help="CPUs of each node")
    group.add_argument("--memory", metavar="GB|GB+", help="memory of each node")
    group.add_argument("--spot", action="store_true", help="nodes that the cloud may take back")
    group.add_argument("--region", metavar="NAME", help="only there")
    group.add_argument("--image", metavar="IMAGE", help="of the cloud, or docker:NAME")
    group.add_argument("--network-tier", metavar="best|standard", help="network between the nodes")
    group.add_argument(
        "--any-of", action="append", default=[], metavar="K=V,…",
        help="an alternative, e.g. infra=aws,gpus=A100:8; repeatable, the cheapest that is free is taken",
    )  # fmt: skip
    group.add_argument("--cluster", metavar="NAME", help="of the cluster; one that is up is used")
    group.add_argument("--workdir", metavar="DIR", help="copied to the nodes (default: this directory)")
    group.add_argument("--setup", metavar="COMMANDS", help="shell commands that prepare each node")
    group.add_argument(
        "--mount", action="append", default=[], metavar="DST=SRC",
        help="path on the nodes = path here, or s3://…; repeatable",
    )  # fmt: skip
    group.add_argument("--autostop", type=minutes, metavar="MIN", help="down after so long without a job")
    group.add_argument("--managed", action="store_true", help="a managed job: SkyPilot recovers it")
    group.add_argument("--retry-until-up", action="store_true", help="try until there are such nodes")


ASKED = (
    *("task", "gpus", "cpus", "memory", "spot", "region", "image", "network_tier", "any_of", "cluster"),
    *("workdir", "setup", "mount", "autostop", "managed", "retry_until_up"),
)


def asked(options: argparse.Namespace) -> list[str]:
    """Which of `cloud_options` were given, as they are written."""
    return [f"--{name.replace('_', '-')}" for name in ASKED if getattr(options, name)]


def cluster_verbs(verbs: Verbs, run: Callable[[argparse.ArgumentParser], None]) -> None:
    """candidates, down, autostop, relaunch. `run` adds the RUN that a verb is about."""
    verb = verbs.add_parser("candidates", help="which nodes SkyPilot would take, and what they cost")
    verb.add_argument("--on", default="sky", metavar="INFRA", help="only there (default: everywhere)")
    verb.add_argument("--nnodes", "--num-nodes", metavar="N", help="nodes (default: 1)")
    cloud_options(verb)
    verb.add_argument("--json", action="store_true", help="JSON on stdout and nothing else")
    verb.set_defaults(verb="cluster:candidates")
    verb = verbs.add_parser("down", help="take the cluster of a run down, with everything on it")
    run(verb)
    verb.add_argument("--yes", metavar="CLUSTER", help="do not ask: the cluster's name")
    verb.add_argument("--json", action="store_true", help="JSON on stdout and nothing else")
    verb.set_defaults(verb="cluster:down")
    verb = verbs.add_parser("autostop", help="when the cluster of a run goes down by itself")
    verb.add_argument("run", metavar="RUN")
    verb.add_argument("minutes", type=minutes, metavar="MINUTES|off", help="without a job")
    verb.add_argument("--json", action="store_true", help="JSON on stdout and nothing else")
    verb.set_defaults(verb="cluster:autostop")
    verb = verbs.add_parser("relaunch", help="the same launch again, on its cluster where that is up")
    run(verb)
    verb.add_argument("--name", metavar="NAME", help="name of the new run (default: the same)")
    verb.add_argument("--detach", action="store_true", help="start it and return")
    verb.add_argument("--dry-run", action="store_true", help="print the plan and do nothing")
    verb.add_argument("--json", action="store_true", help="one JSON object on stdout")
    verb.set_defaults(verb="cluster:relaunch")
