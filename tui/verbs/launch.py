"""launch, plan, exec, demo: everything that starts a run."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from importlib import resources

from ...presets.plan import Plan, Request
from ...presets.render import plan_to_json, render
from ...runners import registry
from ...runners.errors import RunError
from ...runners.model import RunPhase
from ..starting import Prepared, nccl_pairs, pairs, prepare, prepare_command


def launch(options: argparse.Namespace) -> int:
    """Start a script under a preset, then the cockpit, or text where there is no terminal."""
    prepared = _prepare(options)
    return _show(prepared.plan, options) if options.dry_run else begin(prepared, options)


def plan(options: argparse.Namespace) -> int:
    """The same as `launch --dry-run`."""
    return _show(_prepare(options).plan, options)


def execute(options: argparse.Namespace) -> int:
    """`distui exec`: any command, supervised as it is."""
    prepared = prepare_command(tuple(options.rest or ()), _request(options, {}))
    return _show(prepared.plan, options) if options.dry_run else begin(prepared, options)


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


def _prepare(options: argparse.Namespace) -> Prepared:
    if options.on != "local":
        raise RunError(f"--on {options.on}: this version launches on this machine only; leave --on out")
    words = options.rest or []
    if not words:
        raise RunError("no script: write it behind --, as in `distui launch ddp -- train.py --lr 1e-3`")
    about = {
        "script": words[0],
        "args": tuple(words[1:]),
        "module": options.module,
        "no_python": options.no_python,
        "python": options.python,
        "nnodes": options.nnodes,
        "nproc_per_node": _count(options.nproc_per_node),
    }
    return prepare(options.preset, options.set, _request(options, about), options.port)


def _request(options: argparse.Namespace, about: dict[str, object]) -> Request:
    return Request(
        name=options.name,
        env=pairs(options.env, "--env"),
        nccl=nccl_pairs(options.nccl),
        hook=False if options.no_hook else None,
        grace_s=options.grace,
        restart_limit=options.restarts,
        **about,  # type: ignore[arg-type]
    )


def _count(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text


def _show(plan: Plan, options: argparse.Namespace) -> int:
    sys.stdout.write(json.dumps(plan_to_json(plan, masked=True)) + "\n" if options.json else render(plan))
    return 0


def begin(prepared: Prepared, options: argparse.Namespace) -> int:
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
    from .cockpit import show

    return show(entry.record.run, readonly=options.readonly, ascii_only=options.ascii) or outcome(entry)


def outcome(entry: registry.Entry) -> int:
    """The training's own outcome, said on a line, where it has one already; else 0."""
    state = entry.state()
    if not state.phase.ended:
        return 0
    sys.stdout.write(f"{state.name} {state.phase}: {state.end_text}\n")
    return 0 if state.phase is RunPhase.SUCCEEDED else 1
