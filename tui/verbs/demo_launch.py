"""The launch of `demo`: the shipped example on local ranks; without torch a plain command, with installation hints."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace

from ...presets.request import Request
from ...runners.launch.prepare import prepare
from ...runners.launch.prepared import Prepared
from ...runners.launch.words import count
from ...runners.run import run_directories
from ...runners.run.errors import NoTorchError
from ..terminal import complain
from .example import example_path
from .launch import begin

HANG_AT = "100"
"""Step when `demo --hang` lets a rank hang: some seconds after the start."""


def start_demo(options: argparse.Namespace) -> int:
    """Train the shipped example and open it. Raises RunError."""
    name = options.name or run_directories.free_name("demo")
    options.dry_run = False
    try:
        ready = _training(options, name)
    except NoTorchError as error:
        if options.python is not None:
            raise
        ready = _anything(options, name, error)
    return begin(ready, options)


def _training(options: argparse.Namespace, name: str) -> Prepared:
    checkpoints = run_directories.checkpoints_dir() / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    args = ["--steps", str(options.steps), "--step-delay", "0.05", "--checkpoint-dir", str(checkpoints)]
    if options.hang:
        args += ["--hang-at", HANG_AT]
    request = Request(
        preset="ddp",
        script=str(example_path("chargpt.py")),
        args=tuple(args),
        name=name,
        python=options.python,
        nproc_per_node=count(options.nproc_per_node),
    )
    return prepare(request)


def _anything(options: argparse.Namespace, name: str, error: NoTorchError) -> Prepared:
    """Return a run of one plain Python process, supervised like any command, with notes that it trains nothing."""
    nothing = (
        f"No torch in {error.python}: this demo trains nothing. It supervises one process of plain Python, as "
        "`distui exec` does any command: no ranks, no restarts in place, no step of an optimizer."
    )
    remedy = (
        f"To see ranks train: {error.install}, or `distui demo --python PATH` with a Python that has torch."
    )
    notes = (nothing, remedy)
    if options.detach or sys.stdin.isatty():  # else they are printed with the plan's notes
        for note in notes:
            complain(note)
    script = str(example_path("without_torch.py"))
    command = (sys.executable, "-u", script, "--steps", str(options.steps))
    ready = prepare(Request(command=command, name=name))
    return replace(ready, plan=replace(ready.plan, notes=(*notes, *ready.plan.notes)))
