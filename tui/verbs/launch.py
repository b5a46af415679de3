"""launch, plan, exec, rerun: start a run, and follow it."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypedDict

import msgspec

from ...presets import nccl
from ...presets.finding import Finding
from ...presets.plan import Plan
from ...presets.request import Request
from ...presets.sanitize import clean_whole
from ...runners.launch import launch_settings, measured_peaks
from ...runners.launch.launch_settings import HOSTS, LOCAL, kind_of
from ...runners.launch.measured_peaks import MeasuredPeak
from ...runners.launch.prepare import prepare
from ...runners.launch.prepared import Prepared
from ...runners.launch.rerun import LaunchChanges, again, check_name
from ...runners.launch.syntax_check import syntax_problem
from ...runners.launch.words import request_of
from ...runners.node import package, wheels
from ...runners.removal import retention
from ...runners.run import run_directories
from ...runners.run.environment import pairs
from ...runners.run.errors import RunError
from ...runners.run.model import RunPhase
from ..arguments import names_hosts
from ..terminal import answer, complain, interactive, typeable


class Started(TypedDict):
    """`launch --detach`."""

    run: str
    name: str
    path: str


def launch(options: argparse.Namespace) -> int:
    """Start a script under a preset, then open the cockpit, or print text if there is no terminal."""
    take_defaults(options)
    ready = prepare(requested(options))
    if options.dry_run:
        return show(ready, options, _findings(ready))
    for note in ready.plan.passed:
        complain(note)
    if ready.order is None and (problem := syntax_problem(ready.plan)):
        raise RunError(problem)
    _complain_of_errors(_findings(ready))
    return begin(ready, options)


def plan(options: argparse.Namespace) -> int:
    """Print the plan, as `launch --dry-run` does; with --try, start two short runs and compare their losses."""
    take_defaults(options)
    request = requested(options)
    steps = getattr(options, "try")
    if steps is not None:
        return try_adopted(request, steps, options.json)
    ready = prepare(request)
    return show(ready, options, _findings(ready))


def try_adopted(request: Request, steps: int, as_json: bool) -> int:
    """Print the losses of a script's first steps without and with --adopt. Raises RunError."""
    from ...runners.comparison import adoption_trial  # slow to load, and for this option only
    from ..rows.trial import trial_lines

    trial = adoption_trial.try_adopted(request, steps)
    answer(as_json, trial, trial_lines(trial))
    if adoption_trial.starts_unequal(trial["steps"]):
        complain("the first losses differ already: set the script's seed, so that both runs start alike")
    return 0


def take_defaults(options: argparse.Namespace) -> None:
    """Take preset and place from the settings if the command line omits them."""
    defaults = launch_settings.load()
    for problem in defaults.problems:
        complain(problem)
    if options.task is None:
        used = [*_take_preset(options, defaults.preset), *_take_place(options, defaults.place)]
        if used:
            complain(f"{' and '.join(used)}, as {launch_settings.SECTION} of the settings says")
    options.on = options.on or LOCAL


def _take_preset(options: argparse.Namespace, preset: str) -> Iterator[str]:
    """Take the preset of the settings if none is given, and yield its name."""
    if options.preset is None and preset:
        options.preset = preset
        yield f"preset {preset}"


def _take_place(options: argparse.Namespace, place: str) -> Iterator[str]:
    """Take the place of the settings if none is given, and yield its name."""
    if options.on is None and place and not names_hosts(options):
        kind, _, named = place.partition(" ")
        options.on, options.hosts = (LOCAL, named) if kind_of(place) == HOSTS else (kind, None)
        yield f"place {place}"


def _findings(ready: Prepared) -> list[Finding]:
    """Return the findings of the check of the plan, or of a command. Raises PresetError."""
    from ...runners.launch import check  # needed only by this check

    return check.findings(ready.plan, ready.asked or Request())


def execute(options: argparse.Namespace) -> int:
    """Run any command under supervision, unchanged (`distui exec`)."""
    command = tuple(options.rest or ())
    launch = prepare(request_of(vars(options), command=command))
    findings = _findings(launch)
    if options.dry_run:
        return show(launch, options, findings)
    _complain_of_errors(findings)
    return begin(launch, options)


def _complain_of_errors(findings: Sequence[Finding]) -> None:
    for finding in findings:
        if finding.severity == "error" and finding.id != "L15":  # `begin` warns of those for any command
            complain(f"{finding.id} {finding.where}: {finding.text} {finding.remedy}")


def requested(options: argparse.Namespace) -> Request:
    """Return the launch request of the options. Raises RunError."""
    words = vars(options)
    if options.task is not None:
        if options.preset is not None or options.rest:
            raise RunError("--task FILE replaces PRESET and SCRIPT: leave them out")
        return request_of(words)
    if not options.rest:
        raise RunError("no script: write it after --, as in `distui launch ddp -- train.py --lr 1e-3`")
    script, *args = options.rest
    return request_of(words, preset=preset_of(options), script=script, args=tuple(args))


def preset_of(options: argparse.Namespace) -> str:
    """Return the preset's name. Raises RunError."""
    if options.preset is None:
        raise RunError(
            "no preset: write one, as in `distui launch ddp -- train.py`; `distui presets` lists them"
        )
    return str(options.preset)


def show(prepared: Prepared, options: argparse.Namespace, findings: Sequence[Finding] = ()) -> int:
    """Print the plan and its findings."""
    peak = _measured(prepared)
    if options.json:
        further: dict[str, Any] = {"findings": [hit.as_dict() for hit in findings]} if findings else {}
        further |= {} if peak is None else {"measured": msgspec.to_builtins(peak)}
        return show_json(prepared, further)
    sys.stdout.write(prepared.text())
    if peak is not None:
        sys.stdout.write(f"\nGPU memory per rank: {peak.text()}.\n")
    if prepared.order is not None and (missing := wheels.unserved(package.cache_dir())):
        packages = ", ".join(wheels.NEEDED)
        sys.stdout.write(
            f"\nThe launch first downloads {packages} for {len(missing)} kinds of nodes, some 3 MB.\n"
        )
    if findings:
        lines = [f"  {line}" for finding in findings for line in finding.as_lines()]
        sys.stdout.write(clean_whole("\n".join(["", "lint", *lines, ""])))
    if going := retention.load().text:
        sys.stdout.write(f"\n{going}\n")
    return 0


def _measured(prepared: Prepared) -> MeasuredPeak | None:
    """Return the GPU memory of an earlier run of the same script with the same preset, if it was measured."""
    request, plan = prepared.asked, prepared.plan
    if request is None or not request.preset or plan.nproc_per_node is None:
        return None
    ranks = plan.nnodes * plan.nproc_per_node
    launch = measured_peaks.wanted(request, prepared.cwd or os.getcwd(), ranks)
    return measured_peaks.measured([launch])[0]


def show_json(prepared: Prepared, further: Mapping[str, Any]) -> int:
    """Print the plan and `further` as one JSON object."""
    sys.stdout.write(json.dumps({**prepared.json(), **further}) + "\n")
    return 0


def begin(prepared: Prepared, options: argparse.Namespace) -> int:
    """Start the run, and follow it as far as the options and the terminal allow."""
    _warn(prepared.plan, options)
    if prepared.order is not None:
        _make_bundle()
    entry = prepared.start()
    if gone := retention.retire(retention.load(), entry.record.run):
        complain(gone)
    if options.detach:
        started = Started(run=entry.record.run, name=entry.record.name, path=str(entry.path))
        line = f"{entry.record.name} is starting: `distui attach {entry.record.name}` opens it"
        sys.stdout.write((json.dumps(started) if options.json else typeable(line, sys.stdout)) + "\n")
        return 0
    from . import cockpit, foreground  # the modules that read runs are slow to load

    if options.json or not interactive():
        quiet = getattr(options, "quiet", False)
        return asyncio.run(foreground.stay(entry, prepared.plan, as_json=options.json, quiet=quiet))
    return cockpit.show(entry.record.run, options.readonly, options.ascii) or outcome(entry)


def _make_bundle() -> None:
    """Build the package of distui for other nodes. Raises RunError."""
    package.build(report=_show_downloads)
    if why := wheels.why_unserved(package.cache_dir()):
        complain(why)


def _show_downloads(done: int, of: int) -> None:
    bar = "#" * (20 * done // of)
    line = f"distui: downloads of {', '.join(wheels.NEEDED)} for other nodes  [{bar:<20}] {done}/{of}"
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{line}" + ("\n" if done == of else ""))
    elif done in (0, of):
        sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _warn(plan: Plan, options: argparse.Namespace) -> None:
    """Warn of variables that no program may read. The notes of a plan are printed with its text."""
    printed = () if options.detach or options.json or interactive() else plan.notes
    for warning in nccl.warnings_for([*plan.env, *chain(*plan.hosts.values())]):
        if warning not in printed:
            complain(warning)


def outcome(entry: run_directories.Entry) -> int:
    """Print the outcome of a run that has ended; return 0 or 1, or 0 if it has not ended."""
    from .wait import ended_line  # already imported by `begin`

    state = entry.state()
    if not state.phase.ended:
        return 0
    sys.stdout.write(f"{ended_line(state)}\n")
    return 0 if state.phase is RunPhase.SUCCEEDED else 1


def rerun(options: argparse.Namespace) -> int:
    """Repeat a launch as a new run, with changes."""
    entry = run_directories.resolve(options.run)
    wanted = LaunchChanges(
        options.name, tuple(options.set), pairs(options.env, "--env"), tuple(options.unset)
    )
    if not options.dry_run:
        check_name(entry, wanted)
    launch = again(entry, wanted)
    return _show_again(entry, launch, options) if options.dry_run else begin(launch, options)


def _show_again(entry: run_directories.Entry, launch: Prepared, options: argparse.Namespace) -> int:
    """Print the plan of a rerun, and what differs from the run that it repeats."""
    from ...runners.comparison import rerun_changes  # reads whole runs, and only here

    changes = rerun_changes.changes_of_rerun(entry, launch)
    if options.json:
        return show_json(launch, {"changes": msgspec.to_builtins(changes)})
    show(launch, options)
    lines = rerun_changes.changes_lines(entry.record.name, changes)
    sys.stdout.write(clean_whole("\n".join(["", *lines, ""])))
    return 0
