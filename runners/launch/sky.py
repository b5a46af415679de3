"""A run on nodes from SkyPilot: plan, SkyPilot task and the hub's order, and the repetition of such a launch."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...presets import skypilot
from ...presets.finding import PlanError
from ...presets.load import load
from ...presets.model import Loaded
from ...presets.plan import Place, Plan, command_plan, make_plan, wished_env
from ...presets.plan_json import hidden as hidden_of
from ...presets.rank_env import inherited_env
from ...presets.request import Request
from ...presets.skypilot import Cargo
from ...presets.text_formats import Unreadable, bare, decoded, read_yaml, write_yaml
from ..hub import launch_order
from ..hub.launch_order import SkyRequest
from ..hub.sky_process import Candidate, candidates_for, interpreter
from ..node import package
from ..run import file_io, run_directories
from ..run.errors import RunError
from ..run.run_record import RunRecord
from .prepared import Prepared, check_inside, check_port, hub_record, place_of_nodes, run_name, script_texts

MOST_BYTES = 1 << 20
MOST_NODES = 100_000


def prepare(request: Request) -> Prepared:
    """Plan a script under a preset, or a user's own SkyPilot task. Raises RunError, PresetError and PlanError."""
    return _script(request) if request.task is None else _task(request, request.task)


def _script(request: Request) -> Prepared:
    """Plan a script. Raises RunError, PresetError and PlanError."""
    loaded = load(request.preset, request.overrides)
    check_port(request.port)
    record = run_directories.new_record(request.name or run_name(request.script))
    table = loaded.preset.sky
    request = _with_workdir(skypilot.check(skypilot.filled(request, table)))
    plan = make_plan(loaded, request, _facts(loaded, record, request))
    cargo = _cargo(record, hidden_of(plan))
    config = {**table, "name": task_name(record)}
    task = skypilot.wrap(config, request, plan.nnodes, cargo, request.env)
    return _planned(plan, record, request, task, cargo)


def _task(request: Request, file: str) -> Prepared:
    """Plan a user's task. Raises RunError and PlanError."""
    from ...presets.task_summary import own_mesh, summary  # imports lint, which no other launch needs

    skypilot.check(request)
    config = read_task(file)
    record = run_directories.new_record(request.name or run_name(config.get("name") or Path(file).stem))
    nnodes = _number(request.nnodes, config.get("num_nodes") or 1)
    users = inherited_env({name: str(value) for name, value in (config.get("envs") or {}).items()})
    facts = place_of_nodes(record, None, nodes=None, cwd=_cwd(request), gpus=0, cores=0, user_env=users)
    plan = replace(
        command_plan(skypilot.own_command(), request, facts),
        name=record.name,
        command=("bash", file),
        nnodes=nnodes,
        files={skypilot.TASK_SCRIPT: config["run"]},
        mesh=own_mesh(config, nnodes),
    )
    cargo, named = _cargo(record, hidden_of(plan)), {**config, "name": task_name(record)}
    task = skypilot.wrap(named, request, nnodes, cargo, wished_env(request))
    starts = summary({**task, "run": config["run"]}, nnodes)
    planned = _planned(plan, record, request, task, cargo)
    price = f"price        not asked: `distui candidates --task {shlex.quote(file)}` asks SkyPilot"
    return replace(
        planned,
        details="\n".join(["Task", "", *starts.lines(), price, "", planned.details]),
        about={**planned.about, "summary": starts.document()},
    )


def _planned(
    plan: Plan, record: RunRecord, request: Request, task: dict[str, Any], cargo: Cargo
) -> Prepared:
    """Make the launch of a plan and its task."""
    cluster = request.cluster and skypilot.check_cluster(request.cluster)
    order = SkyRequest(
        kind="skypilot",
        cluster=cluster or task_name(record),
        task=skypilot.masked(task),
        bundle=cargo.folder,
        managed=request.managed,
        retry_until_up=request.retry_until_up,
        fast="setup" not in task,
        python=interpreter(),
        reuse=bool(cluster),
    )
    hidden = skypilot.hidden(task)
    what, yaml = "managed job" if order.managed else "cluster", write_yaml(order.task)
    return Prepared(
        replace(plan, notes=(*plan.notes, *_notes(request, order, list(hidden)))),
        hub_record(record, plan),
        order,
        {**cargo.secrets, **hidden},
        details=f"SkyPilot task, {what} {order.cluster}\n\n{yaml}",
        about={"cluster": order.cluster, "managed": order.managed, "task": order.task},
        yaml=yaml,
    )


def task_name(record: RunRecord) -> str:
    """Return the job's name at SkyPilot, which is unique to this run and identifies the job later."""
    return skypilot.cluster_name(record.name, record.run8)


def _notes(request: Request, order: SkyRequest, hidden: list[str]) -> list[str]:
    if order.managed:
        return [
            "A managed job has no ssh to its nodes: ranks and GPUs are not seen, its text is in launch.log."
        ]
    notes = [f"On its nodes (`ssh {order.cluster}`), ~/.distui/distui is the same command as here."]
    if hidden and (request.infra or "slurm").startswith("slurm"):
        notes.append(
            f"On Slurm, SkyPilot shows {', '.join(sorted(hidden))} to every user of the nodes, in a command's "
            "arguments (`ps`): put secrets into a file there instead."
        )
    if request.autostop_min is None and not order.reuse:
        notes.append(
            f"Cluster {order.cluster} stays up, and is billed, until `distui down`; --autostop MIN takes it down."
        )
    return notes


def _cargo(record: RunRecord, hidden: Mapping[str, str]) -> Cargo:
    return Cargo(
        run=record.run,
        bundle=package.name(),
        source=str(run_directories.runs_dir() / record.run / launch_order.CARGO),
        secrets=hidden,
    )


def _cwd(request: Request) -> str:
    """Return the start directory of the ranks on the nodes."""
    return "~" if request.workdir is None else "~/sky_workdir"


def _facts(loaded: Loaded, record: RunRecord, request: Request) -> Place:
    """Return the facts of the nodes as far as the request determines them. Raises PlanError."""
    asked = request.nproc_per_node or loaded.preset.topology.nproc_per_node
    gpus = _gpus(request, needed=asked in ("auto", "gpu"))
    cores = int(float((request.cpus or "0").rstrip("+x")))
    if not gpus and not cores and asked in ("auto", "cpu"):
        raise PlanError("The number of ranks per node is unknown: give --gpus, --cpus or --nproc-per-node")
    texts = script_texts(request) if _is_copied(request) else {}
    ranks = int(asked) if str(asked).isdecimal() else 1
    return place_of_nodes(
        record,
        request.port,
        nodes=None,
        cwd=_cwd(request),
        gpus=gpus,
        cores=max(cores, ranks),
        script_exists=texts.get("script_source", b"") is not None,
        **texts,
    )


def _gpus(request: Request, needed: bool) -> int:
    """Return the GPUs per node, 0 for none or for differing choices.

    Raises PlanError if differing choices are `needed`.
    """
    asked = skypilot.accelerators(request)
    counts = {text or "a node without GPUs": skypilot.gpus(text)[1] if text else 0 for text in asked}
    if len(set(counts.values())) == 1:
        return next(iter(counts.values()))
    if needed:
        ranks = ", ".join(f"{count} on {text}" for text, count in counts.items())
        raise PlanError(
            f"The number of ranks per node depends on what SkyPilot takes ({ranks}): "
            "give --nproc-per-node, or alternatives with as many GPUs each"
        )
    return 0


def _with_workdir(request: Request) -> Request:
    """Return the request with the directory to copy: the named one, or this one if it has the script.

    Raises PlanError.
    """
    here = Path.cwd()
    if request.workdir is not None:
        path = Path(request.workdir).expanduser().resolve()
        if "://" not in request.workdir and not path.is_dir():
            raise PlanError(f"--workdir {request.workdir}: there is no such directory here")
        if "://" in request.workdir:
            return request
        _check_script(request, str(path))
        return replace(request, workdir=str(path))
    script = Path(request.script or "")
    if request.no_python or script.is_absolute() or str(script).startswith("~"):
        return request  # it is already on the nodes
    if here in (Path("/"), Path.home()):
        raise PlanError(
            f"All of {here} would be copied to the nodes: cd to your code, or give --workdir DIR"
        )
    _check_script(request, str(here))
    return replace(request, workdir=str(here))


def _check_script(request: Request, workdir: str) -> None:
    """Check that the script lies in the directory to copy. Raises PlanError."""
    check_inside(None if request.no_python or request.module else request.script, workdir)


def _is_copied(request: Request) -> bool:
    """Return True if the Python script lies in the directory of this machine that SkyPilot copies."""
    if not request.script or request.no_python or request.module:
        return False
    is_elsewhere = Path(request.script).is_absolute() or request.script.startswith("~")
    return request.workdir is not None and "://" not in request.workdir and not is_elsewhere


def _number(asked: int | str | None, otherwise: Any) -> int:
    text = str(otherwise if asked is None else asked)
    if not text.isdecimal() or not int(text):
        raise PlanError(f"--nnodes {text}: a SkyPilot task of your own takes a number of nodes")
    if int(text) > MOST_NODES:
        raise PlanError(
            f"num_nodes {text}: at most {MOST_NODES}; YAML reads 1:30 as 90, so write it without a colon"
        )
    return int(text)


async def candidates(request: Request) -> list[Candidate]:
    """Return the nodes that SkyPilot would take for a request, in its order. Raises RunError."""
    try:
        config = {} if request.task is None else read_task(request.task)
        wish = skypilot.check(request)
    except PlanError as error:
        raise RunError(str(error)) from None
    nnodes = str(request.nnodes or config.get("num_nodes") or 1)
    if not nnodes.isdecimal() or not int(nnodes):
        raise RunError(f"--nnodes {nnodes}: a number of nodes, from 1 on")
    return await candidates_for(wish, int(nnodes), config.get("resources") or {})


def read_task(file: str) -> dict[str, Any]:
    """Read the task, and make its local paths absolute, because the hub may start elsewhere.

    Raises RunError and PlanError.
    """
    try:
        data = file_io.content(Path(file), MOST_BYTES, streams=True)
        documents = [bare(document) for document in read_yaml(decoded(data))]
    except file_io.FileError as error:
        raise RunError(f"--task {error}: name the YAML of a task") from None
    except Unreadable as error:
        raise RunError(f"--task {file}: line {error.line} {error}") from None
    config = skypilot.own_task([document for document in documents if document is not None], file)
    if isinstance(config.get("workdir"), str):
        config["workdir"] = _absolute(config["workdir"])
    mounts = config.get("file_mounts") or {}
    config["file_mounts"] = {
        there: _absolute(here) if isinstance(here, str) else here for there, here in mounts.items()
    }
    return config


def _absolute(path: str) -> str:
    """Make a local relative path absolute. Other paths stay unchanged."""
    if "://" in path or path.startswith(("/", "~", "$")):
        return path
    return str(Path.cwd() / path)
