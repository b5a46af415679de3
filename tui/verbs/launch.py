"""launch, plan, exec, rerun, demo: start a run. candidates, down, autostop: its nodes and its SkyPilot cluster."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib import resources
from itertools import chain
from typing import Any, TypedDict

import msgspec

from ...presets import nccl, skypilot
from ...presets.finding import Finding, PlanError
from ...presets.plan import Plan
from ...presets.request import Request
from ...presets.sanitize import clean_whole
from ...runners.hub import launch_order, sky_cloud
from ...runners.hub.sky_process import candidates_for
from ...runners.launch import launch_settings, sky
from ...runners.launch.launch_settings import HOSTS, LOCAL, kind_of
from ...runners.launch.prepare import prepare
from ...runners.launch.prepared import Prepared
from ...runners.launch.rerun import LaunchChanges, again
from ...runners.launch.syntax_check import syntax_problem
from ...runners.launch.words import count, request_of
from ...runners.node import package, wheels
from ...runners.node.local_agent import with_link
from ...runners.removal import retention
from ...runners.run import run_directories
from ...runners.run.environment import pairs
from ...runners.run.errors import NoTorchError, RunError
from ...runners.run.model import Cluster, Down, RunPhase, SetAutostop
from ...runners.run.wire.client import new_id
from ..arguments import names_hosts
from ..rows import confirm
from ..rows.candidates import candidate_table
from ..rows.glyphs import plain
from ..terminal import answer, complain, interactive, typeable

# -----------------------------------------------------------------------------------------------------------
# launch, plan, exec: start a run.


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
    if options.task is not None:
        options.on = options.on or LOCAL
        return
    used = []
    if options.preset is None and defaults.preset:
        options.preset = defaults.preset
        used.append(f"preset {defaults.preset}")
    if options.on is None and defaults.place and not names_hosts(options):
        used.append(f"place {defaults.place}")
        kind, _, named = defaults.place.partition(" ")
        options.on, options.hosts = (LOCAL, named) if kind_of(defaults.place) == HOSTS else (kind, None)
    options.on = options.on or LOCAL
    if used:
        complain(f"{' and '.join(used)}, as {launch_settings.SECTION} of the settings says")


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
    if options.json:
        document = prepared.json() | ({"findings": [hit.as_dict() for hit in findings]} if findings else {})
        sys.stdout.write(json.dumps(document) + "\n")
        return 0
    sys.stdout.write(prepared.text())
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
    for doubt in nccl.doubts([*plan.env, *chain(*plan.hosts.values())]):
        if doubt not in printed:
            complain(doubt)


def outcome(entry: run_directories.Entry) -> int:
    """Print the outcome of a run that has ended; return 0 or 1, or 0 if it has not ended."""
    from .runs import ended_line  # already imported by `begin`

    state = entry.state()
    if not state.phase.ended:
        return 0
    sys.stdout.write(f"{ended_line(state)}\n")
    return 0 if state.phase is RunPhase.SUCCEEDED else 1


# -----------------------------------------------------------------------------------------------------------
# demo: the shipped example on local ranks; without torch a plain command, with installation hints.


HANG_AT = "100"
"""Step when `demo --hang` lets a rank hang: some seconds after the start."""


def start_demo(options: argparse.Namespace) -> int:
    """Train the shipped example and open it. Raises RunError."""
    name = _free_name("demo")
    options.dry_run = False
    try:
        ready = _training(options, name)
    except NoTorchError as error:
        if options.python is not None or options.preset is not None:
            raise
        ready = _anything(options, name, error)
    return begin(ready, options)


def _training(options: argparse.Namespace, name: str) -> Prepared:
    checkpoints = run_directories.checkpoints_dir() / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    request = Request(
        preset=options.preset or "ddp",
        script=_example("chargpt.py"),
        args=(
            *("--steps", str(options.steps), "--step-delay", "0.05", "--checkpoint-dir", str(checkpoints)),
            *(("--hang-at", HANG_AT) if options.hang else ()),
        ),
        name=name,
        python=options.python,
        nproc_per_node=options.nproc_per_node and count(options.nproc_per_node),
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
    command = (sys.executable, "-u", _example("without_torch.py"), "--steps", str(options.steps))
    ready = prepare(Request(command=command, name=name))
    return replace(ready, plan=replace(ready.plan, notes=(*notes, *ready.plan.notes)))


def _example(name: str) -> str:
    return str(resources.files("distui.presets") / "examples" / name)


def _free_name(base: str) -> str:
    """Return the first of demo, demo-2, demo-3, … that no live run has."""
    live = {entry.record.name for entry in run_directories.entries() if not run_directories.ended(entry)}
    return next(
        name
        for number in range(1, 1000)
        if (name := base if number == 1 else f"{base}-{number}") not in live
    )


# -----------------------------------------------------------------------------------------------------------
# SkyPilot: candidate nodes, a run's cluster, and repeating a launch.


def candidates(options: argparse.Namespace) -> int:
    """Print SkyPilot's candidate nodes, cheapest first."""
    try:
        config = {} if options.task is None else sky.read_task(options.task)
        wish = skypilot.check(request_of(vars(options)))
    except PlanError as error:
        raise RunError(str(error)) from None
    text = options.nnodes or str(config.get("num_nodes") or 1)
    if not text.isdecimal() or not int(text):
        raise RunError(f"--nnodes {text}: a number of nodes, from 1 on")
    offers = asyncio.run(candidates_for(wish, int(text), config.get("resources") or {}))
    answer(options.json, [asdict(offer) for offer in offers], candidate_table(offers))
    return 0 if offers else 1


def down(options: argparse.Namespace) -> int:
    """Take a run's cluster down, after the user typed its name."""
    entry, cluster = _cluster(options.run)
    if cluster.down:
        return _answer(options, True, f"cluster {cluster.name} is down already")
    command, typed = Down(new_id(), cluster.name), options.yes
    if typed is None:
        state = entry.state()
        state.cluster, state.phase = cluster, run_directories.phase(entry)
        asked = confirm.down(state, command)
        sys.stderr.write("\n".join([asked.title, *plain(asked.lines), "type its name to take it down: "]))
        sys.stderr.flush()
        typed = sys.stdin.readline().strip()
    if typed != cluster.name:
        raise RunError(f"{typed!r} is not the name of the cluster ({cluster.name}): nothing was done")
    return _command(options, entry, command)


def autostop(options: argparse.Namespace) -> int:
    """Set the idle minutes before a run's cluster is taken down."""
    entry, cluster = _cluster(options.run)
    if cluster.down:
        raise RunError(f"cluster {cluster.name} is down")
    return _command(options, entry, SetAutostop(new_id(), options.minutes))


def rerun(options: argparse.Namespace) -> int:
    """Repeat a launch as a new run, with changes."""
    entry = run_directories.resolve(options.run)
    if not run_directories.ended(entry) and options.name is None and not options.dry_run:
        raise RunError(
            f"run {entry.record.name} is live: `distui stop {entry.record.name}` first, or --name OTHER"
        )
    wanted = LaunchChanges(
        options.name, tuple(options.set), pairs(options.env, "--env"), tuple(options.unset)
    )
    launch = again(entry, wanted)
    return show(launch, options) if options.dry_run else begin(launch, options)


def _cluster(run: str | None) -> tuple[run_directories.Entry, Cluster]:
    """Return a run and its cluster. Raises RunError."""
    entry = run_directories.resolve(run)
    launched = launch_order.read(entry.path)
    if launched is None:
        raise RunError(f"run {entry.record.name} has no cluster: it was not launched through SkyPilot")
    if launched.managed:
        raise RunError(f"run {entry.record.name} is a managed job: SkyPilot takes its cluster down itself")
    cluster = entry.state().cluster or Cluster()
    return entry, msgspec.structs.replace(cluster, name=launched.cluster)


def _command(options: argparse.Namespace, entry: run_directories.Entry, command: Down | SetAutostop) -> int:
    """Send a command through the hub if the run is live, else directly to SkyPilot."""

    async def use(entry: run_directories.Entry, link: Any) -> Any:
        return await link.send(command)

    if run_directories.ended(entry):
        ok, text = asyncio.run(sky_cloud.carry_out(entry, command))
    else:
        done = asyncio.run(with_link(entry.record.run, use))
        ok, text = done.ok, done.text
    return _answer(options, ok, text)


class Answer(TypedDict):
    """`down`, `autostop`."""

    ok: bool
    text: str


def _answer(options: argparse.Namespace, ok: bool, text: str) -> int:
    if ok or options.json:
        answer(options.json, Answer(ok=ok, text=text), [text])
    else:
        complain(text)
    return 0 if ok else 1
