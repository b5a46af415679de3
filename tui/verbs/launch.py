"""launch, plan, exec, demo: everything that starts a run."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING

from ...presets.plan import Request
from ...runners import registry
from ...runners.errors import RunError
from ...runners.model import RunPhase
from ..cloud_arguments import asked
from ..host_arguments import asked as hosts_asked
from ..starting import Prepared, host_pairs, nccl_pairs, pairs, prepare, prepare_command

if TYPE_CHECKING:
    from ...presets.finding import Finding
    from ..hosting import Ordered as OnHosts
    from ..ordering import Ordered


def launch(options: argparse.Namespace) -> int:
    """Start a script under a preset, then the cockpit, or text where there is no terminal."""
    found = prepared(options)
    if options.dry_run:
        return show(found, options, _findings(found, options))
    if options.on != "local" or hosts_asked(options):
        for one in _findings(found, options):
            if one.severity == "error":  # of nodes that cost money from now on
                sys.stderr.write(f"distui: {one.id} {one.where}: {one.text} {one.remedy}\n")
    return begin(found, options)


def plan(options: argparse.Namespace) -> int:
    """The same as `launch --dry-run`."""
    found = prepared(options)
    return show(found, options, _findings(found, options))


def _findings(found: Prepared | Ordered | OnHosts, options: argparse.Namespace) -> list[Finding]:
    """What the check of the plan says. Raises RunError and PresetError."""
    from .lint import of_plan  # what only a look at the plan needs

    return of_plan(found.plan, options)


def execute(options: argparse.Namespace) -> int:
    """`distui exec`: any command, supervised as it is."""
    prepared = prepare_command(tuple(options.rest or ()), request_of(options, {}))
    return show(prepared, options) if options.dry_run else begin(prepared, options)


def demo(options: argparse.Namespace) -> int:
    """Train the shipped example and look at it."""
    script = resources.files("distui.presets") / "examples" / "chargpt.py"
    name = _free_name("demo")
    checkpoints = registry.runs_dir().parent / "checkpoints" / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    request = Request(
        script=str(script),
        args=("--steps", str(options.steps), "--step-delay", "0.05", "--checkpoint-dir", str(checkpoints)),
        name=name,
        nproc_per_node=_count(options.nproc_per_node),
    )
    options.json = options.dry_run = False
    return begin(prepare(options.preset, (), request), options)


def _free_name(base: str) -> str:
    """demo, demo-2, demo-3, …: the first that no live run has."""
    live = {entry.record.name for entry in registry.entries() if not registry.ended(entry)}
    return next(
        name
        for number in range(1, 1000)
        if (name := base if number == 1 else f"{base}-{number}") not in live
    )


def prepared(options: argparse.Namespace) -> Prepared | Ordered | OnHosts:
    if hosts_asked(options):
        from .on_hosts import prepare_launch as prepare_on_hosts

        return prepare_on_hosts(options)
    words = asked(options)
    if options.on == "local" and words and options.task is None:
        raise RunError(f"{words[0]} is for nodes through SkyPilot: add --on sky, or --on INFRA")
    if options.on != "local" or options.task is not None:
        from .cluster import prepare_launch  # what only these need

        return prepare_launch(options)
    return prepare(preset_of(options), options.set, request_of(options, script_of(options)), options.port)


def preset_of(options: argparse.Namespace) -> str:
    """The preset's name. Raises RunError."""
    if options.preset is None:
        raise RunError("no PRESET: `distui launch ddp -- train.py`; `distui presets` lists them")
    return str(options.preset)


def script_of(options: argparse.Namespace) -> dict[str, object]:
    """What is to run, as fields of a Request. Raises RunError."""
    words = options.rest or []
    if not words:
        raise RunError("no script: write it behind --, as in `distui launch ddp -- train.py --lr 1e-3`")
    return {
        "script": words[0],
        "args": tuple(words[1:]),
        "module": options.module,
        "no_python": options.no_python,
        "python": options.python,
        "nnodes": options.nnodes,
        "nproc_per_node": _count(options.nproc_per_node),
    }


def request_of(options: argparse.Namespace, about: dict[str, object]) -> Request:
    """The options that every start has, and `about`. Raises RunError."""
    return Request(
        name=options.name,
        env=pairs(options.env, "--env"),
        nccl=nccl_pairs(options.nccl),
        nccl_presets=tuple(options.nccl_preset),
        hosts=host_pairs(options.env_on),
        hook=False if options.no_hook else None,
        grace_s=options.grace,
        restart_limit=options.restarts,
        **about,  # type: ignore[arg-type]
    )


def _count(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text


def show(
    prepared: Prepared | Ordered | OnHosts, options: argparse.Namespace, found: Sequence[Finding] = ()
) -> int:
    """Print what would be done, and what was found on it."""
    if options.json:
        document = prepared.json() | ({"findings": [one.as_dict() for one in found]} if found else {})
        sys.stdout.write(json.dumps(document) + "\n")
        return 0
    lines = [f"  {one.severity} {one.id} {one.where}: {one.text} {one.remedy}".rstrip() for one in found]
    sys.stdout.write(prepared.text() + "\n".join(["", "lint", *lines, ""] if lines else []))
    return 0


def begin(prepared: Prepared | Ordered | OnHosts, options: argparse.Namespace) -> int:
    """Start it, and stay with it as far as the user wants and the terminal can."""
    entry = prepared.start()
    about = {"run": entry.record.run, "name": entry.record.name, "path": str(entry.path)}
    if options.detach:
        line = f"{about['name']} is starting: `distui attach {about['name']}` opens it"
        sys.stdout.write((json.dumps(about) if options.json else line) + "\n")
        return 0
    if options.json or not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        from .stay import stay

        return asyncio.run(stay(entry, prepared.plan, as_json=options.json))
    from .cockpit import show as cockpit

    return cockpit(entry.record.run, readonly=options.readonly, ascii_only=options.ascii) or outcome(entry)


def outcome(entry: registry.Entry) -> int:
    """The training's own outcome, said on a line, where it has one already; else 0."""
    state = entry.state()
    if not state.phase.ended:
        return 0
    sys.stdout.write(f"{state.name} {state.phase}: {state.end_text}\n")
    return 0 if state.phase is RunPhase.SUCCEEDED else 1
