"""Preset + script + topology → Plan: everything a launch will do, as one printable value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from . import environ, mesh, nccl, nccl_presets, obeys, topology
from .errors import PlanError
from .launchers import torchrun, wiring
from .model import Loaded, Preset, RestartPolicy, Topology
from .request import Place, Request
from .secrets import is_secret

__all__ = ["Place", "Plan", "PlanError", "Request", "command_plan", "make_plan"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Exactly what runs. `--dry-run`, the launch screen and the runner use this same value."""

    run: str
    """Id of the run."""
    name: str
    """What the user calls it."""
    run_dir: str
    """Absolute path of the run directory."""
    preset: str
    strategy: str
    launcher: str
    """"torchrun" (torch's own elastic launcher) or "command" (any program, also another launcher, as it is)."""
    python: str
    """Interpreter of the training environment; "" for a command."""
    cwd: str
    argv: tuple[str, ...]
    """torchrun: its arguments, from `--nnodes` to the script's own. command: the command."""
    command: tuple[str, ...]
    """The user's part alone: script and arguments, or the command."""
    env: Mapping[str, str]
    """Added to the environment of the launcher and of every rank."""
    hosts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Pattern of host names → variables that the nodes of such a name get on top; see `spread.for_host`."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files written before the start: path relative to the run directory → text."""
    nnodes: int = 1
    nnodes_min: int | None = None
    """An elastic run goes on with as few nodes; None: `nnodes`, always."""
    node: int = 0
    """Number of the node this plan is for, from 0; a plan for several nodes is made into one for each by
    `spread.for_node`."""
    nproc_per_node: int | None = None
    backend: str | None = None
    """"nccl" or "gloo"; None for a command."""
    mesh: Mapping[str, int] = field(default_factory=dict)
    """Named dimensions of the ranks and their sizes, outermost first; empty for a command."""
    batch: str = ""
    """The arithmetic of one optimizer step's samples; "" where it is the script's own."""
    obeys: str | None = None
    """How the script obeys the preset's strategy, as a sentence; None when nothing was found."""
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    grace_s: float = 30.0
    """Seconds between SIGTERM and SIGKILL."""
    hook: bool = True
    """Whether the hook is injected into the ranks."""
    notes: tuple[str, ...] = ()
    """What the user should know before the start, a sentence each."""


def make_plan(loaded: Loaded, request: Request, place: Place) -> Plan:
    """The plan of one run of a script under a preset. Raises PlanError."""
    script = _script(request, place)
    preset = _adapted(loaded.preset, request)
    wished = {**preset.env, **preset.nccl.env, **request.wished}
    gpus = environ.visible_gpus(place.gpus, {**place.user_env, **wished})
    ranks = topology.ranks(preset, gpus, place.cores, place.nodes)
    sizes = _mesh(preset, ranks.nproc)
    env, notes = _rank_env(preset, request, place, wished, ranks)
    look = _look(preset, request, place, ranks.backend, sizes)
    python = request.python or place.python
    launch = _launch(preset, request, place, ranks.nproc, script)
    wired = wiring.wire(preset, launch, look, ranks.backend, place.run_dir, python or "python", env)
    return Plan(
        run=place.run,
        name=request.name or _name(request),
        run_dir=place.run_dir,
        preset=preset.name,
        strategy=preset.strategy.kind,
        launcher=wired.launcher,
        python=python,
        cwd=place.cwd,
        argv=wired.argv,
        command=(*("-m",) * request.module, script, *request.args),
        env={**env, **wired.env},
        hosts=_hosts(preset.hosts, request),
        files=wired.files,
        nnodes=preset.topology.nnodes,
        nnodes_min=preset.topology.nnodes_min,
        nproc_per_node=ranks.nproc,
        backend=ranks.backend,
        mesh=sizes,
        batch=mesh.check_batch(preset.batch, sizes) or "",
        obeys=look.how,
        restart=preset.restart,
        grace_s=preset.launcher.grace_s,
        hook=preset.hook,
        notes=(*ranks.notes, *notes, *_node_notes(preset.topology, place.port), *wired.notes, look.why),
    )


def _look(
    preset: Preset, request: Request, place: Place, backend: str, sizes: Mapping[str, int]
) -> obeys.Obeys:
    """What the script makes of the preset."""
    asked = obeys.Asked(
        kind=preset.strategy.kind, backend=backend, mesh=tuple(sizes), args=request.args,
        accumulation=preset.batch.accumulation,
    )  # fmt: skip
    return obeys.look(request.script, None if request.no_python else place.script_source, asked)


def _mesh(preset: Preset, nproc: int) -> dict[str, int]:
    """The mesh of all ranks; that of the fewest of an elastic run must exist, too. Raises PlanError."""
    if preset.topology.nnodes_min is not None:
        mesh.dimensions(preset, preset.topology.nnodes_min * nproc)
    return mesh.dimensions(preset, preset.topology.nnodes * nproc)


def _rank_env(
    preset: Preset, request: Request, place: Place, wished: Mapping[str, str], ranks: topology.Ranks
) -> tuple[dict[str, str], list[str]]:
    """Environment of every rank, and what the user should know about it. Raises PlanError."""
    env, notes = _layered(request, place, {**preset.env, **preset.nccl.env}, wished)
    if ranks.nproc > 1 and "OMP_NUM_THREADS" not in {**place.user_env, **wished}:
        env["OMP_NUM_THREADS"] = "1"  # torchrun would do so itself, with a long warning
        notes.append(
            "OMP_NUM_THREADS=1 in each rank, as torchrun sets it; --env OMP_NUM_THREADS=N for more."
        )
    env |= environ.contract(preset, ranks.backend)
    env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(max(1, round(preset.launcher.grace_s)))
    return env, notes


def _layered(
    request: Request, place: Place, base: Mapping[str, str], wished: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The environment by its layers, and what there is to say of them. `base`: what was wished before the request.

    Raises PlanError.
    """
    _check_env(request, wished)
    common = environ.common(place.run, place.ras_port)
    env = environ.layered(common, place.user_env, wished)
    before = environ.layered(common, place.user_env, base)
    notes = environ.notes(env, place.user_env, wished)
    return env, [*notes, *nccl_presets.notes(request.nccl_presets, before, env)]


def _node_notes(shape: Topology, port: int) -> tuple[str, ...]:
    """What several nodes have in common."""
    if shape.nnodes == 1:
        return ()
    notes = [
        f"The nodes meet on port {port} of the first one, where it must be free and open to the others."
    ]
    if shape.nnodes_min is not None:
        notes.append(
            f"Elastic: the ranks start again with the nodes that are left, down to {shape.nnodes_min}."
        )
    return tuple(notes)


def command_plan(command: tuple[str, ...], request: Request, place: Place) -> Plan:
    """The plan of any program, supervised as it is, restarted only if asked. Raises PlanError."""
    if not command or not command[0]:
        raise PlanError("No command was given: write it after --, as in `distui exec -- bash train.sh`.")
    env, notes = _layered(request, place, {}, request.wished)
    fewest, nnodes = topology.parse_nnodes(request.nnodes or 1)
    topology.check_nodes(Preset(name="", topology=Topology(nnodes=nnodes, nnodes_min=fewest)), place.nodes)
    return Plan(
        run=place.run,
        name=request.name or PurePath(command[0]).stem or "command",
        run_dir=place.run_dir,
        preset="",
        strategy="",
        launcher="command",
        python="",
        cwd=place.cwd,
        argv=command,
        command=command,
        env=env,
        hosts=_hosts({}, request),
        nnodes=nnodes,
        nnodes_min=fewest,
        restart=RestartPolicy(limit=request.restart_limit or 0),
        grace_s=30.0 if request.grace_s is None else request.grace_s,
        hook=request.hook is not False,
        notes=tuple(notes),
    )


def _script(request: Request, place: Place) -> str:
    if not request.script:
        raise PlanError("No script was given: write it after --, as in `distui launch ddp -- train.py`.")
    if request.module and request.no_python:
        raise PlanError("--module and --no-python exclude each other: a module needs Python.")
    if not place.script_exists:
        kind, how = ("module", "name") if request.module else ("script", "path")
        raise PlanError(
            f"There is no {kind} {request.script} seen from {place.cwd}: give its {how} from there."
        )
    return request.script


def _name(request: Request) -> str:
    script = request.script or ""
    return (script.rsplit(".", 1)[-1] if request.module else PurePath(script).stem) or "run"


def _adapted(preset: Preset, request: Request) -> Preset:
    """The preset with the request's wishes in it."""
    shape, launcher, restart = preset.topology, preset.launcher, preset.restart
    if request.nnodes is not None:
        fewest, nnodes = topology.parse_nnodes(request.nnodes)
        shape = replace(shape, nnodes=nnodes, nnodes_min=fewest)
    if request.nproc_per_node is not None:
        shape = replace(shape, nproc_per_node=topology.parse_nproc(request.nproc_per_node))
    if request.grace_s is not None:
        launcher = replace(launcher, grace_s=request.grace_s)
    if request.restart_limit is not None:
        restart = replace(restart, limit=request.restart_limit)
    hook = preset.hook if request.hook is None else request.hook
    return replace(preset, topology=shape, launcher=launcher, restart=restart, hook=hook)


def _launch(preset: Preset, request: Request, place: Place, nproc: int, script: str) -> torchrun.Launch:
    return torchrun.Launch(
        nnodes=preset.topology.nnodes,
        nnodes_min=preset.topology.nnodes_min,
        nproc_per_node=nproc,
        run=place.run,
        host=place.host,
        port=place.port,
        monitor_interval_s=preset.launcher.monitor_interval_s,
        command=(script, *request.args),
        module=request.module,
        no_python=request.no_python,
        rendezvous=preset.launcher.rendezvous,
        extra=preset.launcher.args,
    )


def _hosts(preset: Mapping[str, Mapping[str, str]], request: Request) -> dict[str, dict[str, str]]:
    """What is for some nodes alone, the request's last, so that it wins. Raises PlanError."""
    patterns = [*(name for name in preset if name not in request.hosts), *request.hosts]
    found = {name: {**preset.get(name, {}), **request.hosts.get(name, {})} for name in patterns}
    for pattern, variables in found.items():
        refusal = environ.refusal(variables)
        refusal = refusal or next(
            (f"{name} for hosts {pattern} is a secret, which no plan keeps: give it to all nodes with --env."
             for name in variables if is_secret(name)), None,
        )  # fmt: skip
        if refusal:
            raise PlanError(refusal)
    return found


def _check_env(request: Request, wished: Mapping[str, str]) -> None:
    """Raises PlanError for a variable that no plan may hold."""
    on_hosts = [pair for one in request.hosts.values() for pair in one.items() if nccl.known(pair[0])]
    for name, value in (*request.nccl.items(), *on_hosts):
        problem = nccl.check(name, value)
        if problem:
            raise PlanError(problem)
    refusal = environ.refusal(wished)
    if refusal:
        raise PlanError(refusal)
