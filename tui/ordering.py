"""From what a user typed to a run on nodes that SkyPilot brings: plan, SkyPilot task, and the order for the hub."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from ..presets.environ import inherited
from ..presets.errors import PlanError
from ..presets.launchers import placing, skypilot, skytable
from ..presets.launchers.skypilot import Cargo, Resources
from ..presets.load import load
from ..presets.model import Loaded
from ..presets.plan import Place, Plan, Request, command_plan, make_plan
from ..presets.render import plan_to_json, render
from ..presets.secrets import is_secret
from ..presets.spread import rendezvous_port
from ..presets.yamltext import dump
from ..runners import local, registry
from ..runners.errors import RunError
from ..runners.hub import order
from ..runners.hub.cloud import interpreter
from ..runners.hub.order import Order
from ..runners.node import bundle
from . import own_task, spreading
from .starting import run_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Where and how, beside what is to run."""

    resources: Resources
    cluster: str | None = None
    managed: bool = False
    retry_until_up: bool = False


@dataclass(frozen=True, slots=True)
class Ordered:
    """A plan for all nodes, its record, and how SkyPilot brings them. Starts as starting.Prepared does."""

    plan: Plan
    record: registry.RunRecord
    order: Order
    hidden: Mapping[str, str]
    """Values of the task's and the plan's secrets."""

    def text(self) -> str:
        """What `--dry-run` prints: the plan, then the task exactly as SkyPilot gets it, secrets masked."""
        what = "managed job" if self.order.managed else "cluster"
        return f"{render(self.plan)}\nSkyPilot task, {what} {self.order.cluster}\n\n{dump(self.order.task)}"

    def json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "plan": plan_to_json(self.plan, masked=True),
            "cluster": self.order.cluster,
            "managed": self.order.managed,
            "task": self.order.task,
        }

    def start(self) -> registry.Entry:
        """Write it down and start the hub, which launches. Raises RunError."""
        return spreading.start(self.plan, self.record, self.order, self.hidden, cargo=order.CARGO)


def prepare(
    preset: str, overrides: Sequence[str], request: Request, wish: Wish, port: int | None = None
) -> Ordered:
    """Plan a run of a script under a preset; `port`: of the rendezvous. Raises RunError and PresetError."""
    loaded = load(preset, overrides)
    spreading.check_port(port)
    record = registry.new_record(request.name or run_name(request.script))
    try:
        table = loaded.preset.sky
        asked = skypilot.check(skytable.filled(wish.resources, table))
        wish = replace(wish, resources=_workdir(asked, request))
        place = _place(loaded, record, request, wish.resources)
        if port is not None:
            place = replace(place, port=port, ras_port=port + 1)
        plan = make_plan(loaded, request, place)
        return _ordered(plan, record, wish, lambda cargo: skytable.completed(skypilot.task(
            task_name(record), plan.nnodes, wish.resources, cargo, request.env
        ), table))  # fmt: skip
    except PlanError as error:
        raise RunError(str(error)) from None


def prepare_task(file: str, request: Request, wish: Wish) -> Ordered:
    """Plan a run of a user's own SkyPilot task. Raises RunError."""
    try:
        skypilot.check(wish.resources)
        config = own_task.read(file)
        record = registry.new_record(request.name or run_name(config.get("name") or Path(file).stem))
        nnodes = _number(request.nnodes, config.get("num_nodes") or 1)
        users = inherited({name: str(value) for name, value in (config.get("envs") or {}).items()})
        place = replace(_anywhere(record, wish.resources), user_env=users)
        plan = replace(
            command_plan(skypilot.own_command(), request, place),
            name=record.name,
            command=("bash", file),
            nnodes=nnodes,
            files={skypilot.TASK_SCRIPT: config["run"]},
        )
        named = {**config, "name": task_name(record)}
        return _ordered(plan, record, wish, lambda cargo: skypilot.wrap(
            named, wish.resources, nnodes, cargo, request.wished
        ))  # fmt: skip
    except PlanError as error:
        raise RunError(str(error)) from None


def again(entry: registry.Entry, name: str | None) -> Ordered:
    """The order of an earlier run once more, under an id of its own. Raises RunError."""
    found = order.read(entry.path)
    if found is None:
        raise RunError(
            f"{entry.record.name} was not launched through SkyPilot: `distui launch` starts it anew"
        )
    from ..runners import daemon

    before, record = daemon.load(entry), registry.new_record(name or entry.record.name)
    run_dir = str(registry.runs_dir() / record.run)
    words = {str(at): record.run if word == before.run else word for at, word in enumerate(before.argv)}

    def moved(texts: Mapping[str, str]) -> dict[str, str]:
        return placing.moved(texts, tuple(before.files), before.run_dir, run_dir)

    plan = replace(
        before, run=record.run, name=record.name, run_dir=run_dir, argv=tuple(moved(words).values()),
        files=moved(before.files), env=moved({**before.env, "DISTUI_RUN_ID": record.run}),
    )  # fmt: skip
    known = {name: value for name, value in os.environ.items() if is_secret(name)}
    task, _ = skypilot.revealed(found.task, known)
    cargo = _cargo(record, {})
    task |= {
        "name": task_name(record),
        "file_mounts": {**task["file_mounts"], **cargo.mounts},
        "run": cargo.command,
    }
    fresh = msgspec.structs.replace(
        found, task=skypilot.masked(task), bundle=cargo.folder, fast=True, reuse=True
    )
    return Ordered(plan, spreading.hub_record(record, plan), fresh, {**known, **skypilot.hidden(task)})


def task_name(record: registry.RunRecord) -> str:
    """By which SkyPilot lists the job, and by which it is found again: one of this run alone."""
    return skypilot.cluster_name(record.name, record.run8)


def _ordered(plan: Plan, record: registry.RunRecord, wish: Wish, made: Any) -> Ordered:
    """`made`: cargo → the SkyPilot task."""
    hidden = {name: value for name, value in plan.env.items() if is_secret(name)}
    cargo = _cargo(record, hidden)
    task = made(cargo)
    cluster = wish.cluster and skypilot.check_cluster(wish.cluster)
    found = Order(
        kind="skypilot",
        cluster=cluster or task_name(record),
        task=skypilot.masked(task),
        bundle=cargo.folder,
        managed=wish.managed,
        retry_until_up=wish.retry_until_up,
        fast="setup" not in task,
        python=interpreter(),
        reuse=bool(cluster),
    )
    plan = replace(plan, notes=(*plan.notes, *_notes(wish, found, list(skypilot.hidden(task)))))
    return Ordered(plan, spreading.hub_record(record, plan), found, {**hidden, **skypilot.hidden(task)})


def _notes(wish: Wish, found: Order, hidden: list[str]) -> list[str]:
    if wish.managed:
        return [
            "A managed job has no ssh to its nodes: ranks and GPUs are not seen, its text is in launch.log."
        ]
    notes = [f"On its nodes (`ssh {found.cluster}`), ~/.distui/distui is the same command as here."]
    if hidden and (wish.resources.infra or "slurm").startswith("slurm"):
        notes.append(
            f"On Slurm, SkyPilot shows {', '.join(sorted(hidden))} to every user of the nodes, in a command's "
            "arguments (`ps`): put secrets into a file there instead."
        )
    if wish.resources.autostop_min is None and not found.reuse:
        notes.append(
            f"Cluster {found.cluster} stays up, and is billed, until `distui down`; --autostop MIN takes it down."
        )
    return notes


def _cargo(record: registry.RunRecord, hidden: Mapping[str, str]) -> Cargo:
    return Cargo(
        run=record.run,
        bundle=bundle.build().name,
        source=str(registry.runs_dir() / record.run / order.CARGO),
        secrets=hidden,
    )


def _anywhere(record: registry.RunRecord, wish: Resources) -> Place:
    """A place of which nothing is known before there is one."""
    port = rendezvous_port(record.run8)
    return Place(
        run=record.run,
        run_dir=str(registry.runs_dir() / record.run),
        port=port,
        ras_port=port + 1,
        gpus=0,
        cores=0,
        cwd="~" if wish.workdir is None else "~/sky_workdir",
        python="",
        nodes=None,
    )


def _place(loaded: Loaded, record: registry.RunRecord, request: Request, wish: Resources) -> Place:
    """What the nodes will be as far as the wishes say it. Raises PlanError."""
    asked = request.nproc_per_node or loaded.preset.topology.nproc_per_node
    gpus, cores = _gpus(wish), int(float((wish.cpus or "0").rstrip("+x")))
    if not gpus and not cores and asked in ("auto", "cpu"):
        raise PlanError("How many ranks a node is not known: give --gpus, --cpus or --nproc-per-node.")
    exists, source = _script(request, wish)
    ranks = int(asked) if str(asked).isdecimal() else 1
    return replace(
        _anywhere(record, wish),
        gpus=gpus,
        cores=max(cores, ranks),
        script_exists=exists,
        script_source=source,
    )


def _gpus(wish: Resources) -> int:
    """GPUs of each node; 0 where there are none, or alternatives differ."""
    texts = [wish.gpus] if wish.gpus else [one.get("gpus", "") for one in wish.any_of]
    counts = {skypilot.gpus(text)[1] if text else 0 for text in texts}
    return counts.pop() if len(counts) == 1 else 0


def _workdir(wish: Resources, request: Request) -> Resources:
    """The directory that is copied to the nodes: the one named, or this one where the script is in it.

    Raises PlanError.
    """
    here = Path.cwd()
    if wish.workdir is not None:
        path = Path(wish.workdir).expanduser().resolve()
        if "://" not in wish.workdir and not path.is_dir():
            raise PlanError(f"--workdir {wish.workdir}: there is no such directory here.")
        return wish if "://" in wish.workdir else replace(wish, workdir=str(path))
    script = Path(request.script or "")
    if request.no_python or script.is_absolute() or str(script).startswith("~"):
        return wish  # it is on the nodes already
    if here in (Path("/"), Path.home()):
        raise PlanError(
            f"All of {here} would be copied to the nodes: cd to your code, or give --workdir DIR."
        )
    return replace(wish, workdir=str(here))


def _script(request: Request, wish: Resources) -> tuple[bool, bytes | None]:
    """Whether the script will be there, and its text, where that can be known from here."""
    if request.script is None or request.no_python or request.module or wish.workdir is None:
        return True, None
    path = Path(request.script)
    if path.is_absolute() or request.script.startswith("~"):
        return True, None
    source = local.read_source(Path(wish.workdir) / path)
    return source is not None or "://" in wish.workdir, source


def _number(asked: int | str | None, otherwise: Any) -> int:
    text = str(otherwise if asked is None else asked)
    if not text.isdecimal() or not int(text):
        raise PlanError(f"--nnodes {text}: a SkyPilot task of your own takes a number of nodes.")
    return int(text)
