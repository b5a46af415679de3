"""Make the plan: the user's request and the host's resources, resolved to one command per node."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from . import (
    adopt,
    env_names,
    nccl,
    rank_env,
    rank_mesh,
    save_on,
    script_support,
    signal_patterns,
    skypilot,
    worker_group,
)
from .finding import PlanError
from .launchers import accelerate, deepspeed, megatron, torchrun
from .model import MESH_OPTIONS, Loaded, Preset, RestartPolicy, Topology
from .request import Request
from .script_support import Obeys
from .secrets import holds_secret, mask_words
from .wiring import NO_CONFIG, OwnConfig, wire


def wished_env(request: Request) -> dict[str, str]:
    """Return all requested variables. Raises PlanError."""
    return {**nccl.combined(request.nccl_presets), **request.env, **request.nccl}


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Facts about the place of the run, measured by the caller."""

    run: str
    run_dir: str
    """Absolute."""
    port: int
    """A free port on the head for the rendezvous."""
    ras_port: int
    """A free port for NCCL's RAS."""
    gpus: int
    """GPUs that the driver reports on this node, before CUDA_VISIBLE_DEVICES."""
    cores: int
    """Cores that this process may use."""
    cwd: str
    python: str
    """Interpreter of the training environment."""
    host: str = "127.0.0.1"
    """Address of the rendezvous in a run of one node."""
    nodes: int | None = 1
    """Available nodes, or None for as many as requested."""
    script_exists: bool = True
    """False if the caller did not find the script."""
    script_source: str | bytes | None = None
    """Text (or raw bytes) of the script, or None if it is unreadable."""
    script_beside: Mapping[str, str | bytes | None] = field(default_factory=dict)
    """Imported files of the script's folder: relative path → text, or None if the file is too large."""
    script_config: str | bytes | None = None
    """The script's own DeepSpeed configuration (`script_support.own_config`), or None if it is unreadable."""
    user_env: Mapping[str, str] = field(default_factory=dict)
    """`rank_env.inherited_env` of the user's own environment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Exactly what runs: `--dry-run`, the launch screen and the runner use one Plan."""

    run: str
    """Id of the run."""
    name: str
    run_dir: str
    """Absolute path of the run directory."""
    preset: str
    strategy: str
    launcher: str
    """ "torchrun" (torch's own elastic launcher) or "command" (any program, or another launcher, unchanged)."""
    python: str
    """Interpreter of the training environment, or "" for a command."""
    cwd: str
    argv: tuple[str, ...]
    """torchrun: its arguments, from `--nnodes` to the script's arguments. command: the command."""
    command: tuple[str, ...]
    """Only the user's part: script and arguments, or the command."""
    env: Mapping[str, str]
    """Added to the environment of the launcher and of every rank."""
    hosts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Pattern of host names → additional variables of the matching nodes. See `node_plans.for_host`."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files to write before the start: path relative to the run directory → text."""
    nnodes: int = 1
    nnodes_min: int | None = None
    """Fewest nodes of an elastic run. None means always `nnodes`."""
    node: int = 0
    """Number of this plan's node, from 0. `node_plans.for_node` derives it from the plan of all nodes."""
    nproc_per_node: int | None = None
    backend: str | None = None
    """ "nccl" or "gloo", or None for a command."""
    precision: str | None = None
    """Compute dtype of the preset; None for a command."""
    zero_stage: int | None = None
    """ZeRO stage of a DeepSpeed preset."""
    mesh: Mapping[str, int] = field(default_factory=dict)
    """Named dimensions of the ranks and their sizes, outermost first. A command has none, or `megatron.of_command`."""
    batch: str = ""
    """The product that gives the samples per optimizer step, or "" if the script decides it."""
    obeys: str | None = None
    """One sentence on how the script obeys the preset's strategy, or None if it does not."""
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    grace_s: float = 30.0
    """Seconds between SIGTERM and SIGKILL."""
    save_on: str = ""
    """How to request a checkpoint: "SIGUSR1", or "FILE:PATH" relative to `cwd`, or "" if impossible."""
    hook: bool = True
    """True if the hook is injected into the ranks."""
    signals: tuple[str, ...] = ()
    """Patterns of training signals in the output: see `signal_patterns`."""
    notify: tuple[str, ...] = ()
    """Notification channels with their rules, or (). Only the settings hold addresses."""
    log_cap: int = 0
    """Largest log on disk, in bytes. The middle of a larger log is removed. 0 means no limit."""
    notes: tuple[str, ...] = ()
    """One sentence per fact that the user should know before the start."""
    passed: tuple[str, ...] = ()
    """The notes about configuration files that were found and ignored."""
    sources: tuple[str, ...] = ()
    """Files that define the preset, except the builtin ones."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Name of a variable of `env` → its origin (`rank_env.env_origins`). Keys for `hosts` are "PATTERN:NAME"."""


def make_plan(loaded: Loaded, request: Request, place: Place) -> Plan:
    """Plan one run of a script under a preset. Raises PlanError."""
    script = _script(request, place)
    preset = _adapted(loaded.preset, request)
    wished = {**preset.env, **preset.nccl.env, **wished_env(request)}
    ranks = worker_group.ranks(preset, place.gpus, place.cores, place.nodes, {**place.user_env, **wished})
    planned = sizes = _mesh(preset, ranks.nproc)
    env, notes = _rank_env(preset, request, place, wished, ranks)
    obeyed = _inspect(preset, request, place, ranks.backend, sizes)
    python = request.python or place.python
    launch = _launch(preset, request, place, ranks.nproc, script)
    obeyed, sizes = _megatron(preset, request, obeyed, sizes)
    if sizes != planned:
        del env["DISTUI_MESH"]  # which the script does not follow
    own = _own_config(request, place)
    wired = wire(preset, launch, obeyed, ranks.backend, place.run_dir, env, own)
    command = (script, *request.args)
    if request.module:
        command = ("-m", *command)
    return Plan(
        run=place.run,
        name=request.name or _name(request),
        run_dir=place.run_dir,
        preset=preset.name,
        strategy=preset.strategy.kind,
        launcher="torchrun",
        python=python,
        cwd=place.cwd,
        argv=wired.argv,
        command=command,
        env={**env, **wired.env},
        hosts=_hosts(preset.hosts, request),
        files=wired.files,
        nnodes=preset.topology.nnodes,
        nnodes_min=preset.topology.nnodes_min,
        nproc_per_node=ranks.nproc,
        backend=ranks.backend,
        precision=preset.precision.param,
        zero_stage=preset.strategy.stage if preset.strategy.kind == "deepspeed" else None,
        mesh=sizes,
        batch=rank_mesh.check_batch(preset.batch, sizes) or "",
        obeys=obeyed.how,
        restart=preset.restart,
        grace_s=preset.launcher.grace_s,
        save_on=_save_on(preset, request),
        hook=preset.hook,
        signals=signal_patterns.checked(request.signals),
        notes=(
            *loaded.notes,
            *ranks.notes,
            *notes,
            *_node_notes(preset.topology, place.port),
            *wired.notes,
            obeyed.why,
        ),
        passed=loaded.notes,
        sources=loaded.sources,
        origins=_origins(loaded, request, place, {**env, **wired.env}),
    )


def _origins(loaded: Loaded, request: Request, place: Place, env: Mapping[str, str]) -> dict[str, str]:
    preset = {
        path.partition(".")[2]: origin
        for path, origin in loaded.origins.items()
        if path.startswith(("env.", "nccl."))
    }
    sources = rank_env.env_origins(env, place.user_env, preset, wished_env(request))
    for pattern, variables in _hosts(loaded.preset.hosts, request).items():
        for name in variables:
            origin = f"{rank_env.PRESET}, {loaded.origins.get(f'hosts.{pattern}', loaded.preset.name)}"
            asked = name in request.env_on.get(pattern, {})
            sources[f"{pattern}:{name}"] = rank_env.COMMAND_LINE if asked else origin
    return sources


def _inspect(
    preset: Preset, request: Request, place: Place, backend: str, sizes: Mapping[str, int]
) -> Obeys:
    """Determine how the script obeys the preset. Raises PlanError."""
    if request.adopt:
        texts = {"": place.script_source, **place.script_beside}
        return adopt.adopted(preset, request.script or "the script", texts, python=not request.no_python)
    asked = script_support.Requirements(
        kind=preset.strategy.kind,
        backend=backend,
        mesh=tuple(name for name, size in sizes.items() if size > 1),
        args=request.args,
        accumulation=preset.batch.accumulation,
        options=preset.strategy.extras(),
        beside=place.script_beside,
        own_config=_own_config(request, place).path,
    )
    obeyed = script_support.inspect(
        request.script, None if request.no_python else place.script_source, asked
    )
    if request.module and place.script_source is None:
        why = f"Module {request.script} is none below {place.cwd}: what it obeys shows only in the training's Python."
        return replace(obeyed, why=why)
    return obeyed


def _own_config(request: Request, place: Place) -> OwnConfig:
    values = deepspeed.parsed(place.script_config)
    if not values:
        return NO_CONFIG
    return OwnConfig(script_support.own_config(place.script_source, request.args), values)


def _megatron(
    preset: Preset, request: Request, obeyed: Obeys, sizes: dict[str, int]
) -> tuple[Obeys, dict[str, int]]:
    """Return the result for the script and the mesh, corrected if Megatron-LM or NeMo divides the ranks."""
    by_accelerate = obeyed.reader in ("accelerate", "trainer")
    words: Sequence[str] = ()
    if by_accelerate:
        words = accelerate.megatron_words(preset)
    elif obeyed.how is None and obeyed.reader is None:
        words = request.args
    asked = megatron.read(words)
    if asked is None:
        return obeyed, sizes
    world = math.prod(sizes.values())
    made = megatron.dimensions(asked, world)
    script = request.script or "the command"
    if not by_accelerate:
        return replace(obeyed, why=megatron.note(script, asked, made)), made or {"dp": world}
    why = megatron.note(f"{script}, through [accelerate] megatron_lm_config,", asked, made)
    return replace(obeyed, how=why, why=why), made or {"dp": world}


def _mesh(preset: Preset, nproc: int) -> dict[str, int]:
    """Return the mesh of all ranks. The fewest ranks of an elastic run must also have a mesh. Raises PlanError."""
    if preset.topology.nnodes_min is not None:
        rank_mesh.dimensions(preset, preset.topology.nnodes_min * nproc)
    return rank_mesh.dimensions(preset, preset.topology.nnodes * nproc)


def contract(preset: Preset, backend: str) -> dict[str, str]:
    """Return the variables that `parallelize()` reads."""

    def text(values: Mapping[str, object]) -> str:
        return json.dumps({name: part for name, part in values.items() if part is not None}, sort_keys=True)

    kind = preset.strategy.kind
    batch = {"micro": preset.batch.micro, "accumulation": preset.batch.accumulation}
    precision = {"param": preset.precision.param, "reduce": preset.precision.reduce}
    return {
        "DISTUI_STRATEGY": kind,
        "DISTUI_STRATEGY_OPTIONS": text(preset.strategy.options()),
        "DISTUI_MESH": text({name: getattr(preset.mesh, name) for name in MESH_OPTIONS[kind]}),
        "DISTUI_BATCH": text(batch),
        "DISTUI_PRECISION": text(precision),
        "DISTUI_BACKEND": backend,
    }


def _rank_env(
    preset: Preset, request: Request, place: Place, wished: Mapping[str, str], ranks: worker_group.Ranks
) -> tuple[dict[str, str], list[str]]:
    """Return the environment of every rank, and notes for the user. Raises PlanError."""
    env, notes = _layered(request, place, {**preset.env, **preset.nccl.env}, wished)
    notes += _secret_notes(request.args)
    if ranks.nproc > 1 and "OMP_NUM_THREADS" not in {**place.user_env, **wished}:
        env["OMP_NUM_THREADS"] = "1"  # torchrun would set it with a long warning
        notes.append(
            "OMP_NUM_THREADS=1 in each rank, as torchrun sets it; --env OMP_NUM_THREADS=N for more."
        )
    if preset.topology.nnodes == 1:
        given = {**place.user_env, **wished}
        env |= {name: value for name, value in rank_env.INSIDE.items() if name not in given}
    env |= contract(preset, ranks.backend) | ({adopt.VARIABLE: "1"} if request.adopt else {})
    env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(max(1, round(preset.launcher.grace_s)))
    return env, notes


def _layered(
    request: Request, place: Place, base: Mapping[str, str], wished: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Return the environment from its layers, and notes for the user. Raises PlanError.

    `base`: the variables before the request.
    """
    _check_env(request, wished)
    common = rank_env.common_env(place.run, place.ras_port)
    env = rank_env.layered_env(common, place.user_env, wished)
    before = rank_env.layered_env(common, place.user_env, base)
    notes = rank_env.env_notes(env, place.user_env, wished)
    return env, [*notes, *nccl.notes(request.nccl_presets, before, env)]


def _node_notes(shape: Topology, port: int) -> tuple[str, ...]:
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
    """Plan any program, which runs unchanged and restarts only on request. Raises PlanError."""
    if not command or not command[0]:
        raise PlanError("No command was given: write it after --, as in `distui exec -- bash train.sh`")
    env, notes = _layered(request, place, {}, wished_env(request))
    notes += nccl.warnings_for([*wished_env(request), *itertools.chain(*request.env_on.values())])
    fewest, nnodes = worker_group.parse_nnodes(request.nnodes or 1)
    worker_group.check_nodes(
        Preset(name="", topology=Topology(nnodes=nnodes, nnodes_min=fewest)), place.nodes
    )
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
        mesh=megatron.of_command(command, nnodes),
        restart=RestartPolicy(limit=request.restart_limit or 0),
        grace_s=30.0 if request.grace_s is None else request.grace_s,
        save_on=save_on.checked(request.save_on or ""),
        hook=request.hook is not False,
        signals=signal_patterns.checked(request.signals),
        notes=(*notes, *_secret_notes(command), *filter(None, (skypilot.note_on_command(command),))),
        origins=_origins(Loaded(preset=Preset(name="")), request, place, env),
    )


def _save_on(preset: Preset, request: Request) -> str:
    if request.save_on is not None:
        return save_on.checked(request.save_on)
    return save_on.checked(preset.launcher.save_on, "launcher.save_on")


def _secret_notes(words: Sequence[str]) -> tuple[str, ...]:
    if mask_words(words) == list(words):
        return ()
    note = "A secret is among the arguments: distui writes it nowhere, but every user of a host can read the arguments "
    return (note + "of its processes (`ps`). Pass it in a variable (--env) or a file.",)


def _script(request: Request, place: Place) -> str:
    if not request.script:
        raise PlanError("No script was given: write it after --, as in `distui launch ddp -- train.py`")
    if request.module and request.no_python:
        raise PlanError("--module and --no-python exclude each other: a module needs Python")
    if not place.script_exists:
        kind = "module" if request.module else "script"
        raise PlanError(f"{kind} not found: {request.script} (looked in {place.cwd})")
    return request.script


def _name(request: Request) -> str:
    script = request.script or ""
    return (script.rsplit(".", 1)[-1] if request.module else PurePath(script).stem) or "run"


def _adapted(preset: Preset, request: Request) -> Preset:
    """Return the preset with the values of the request."""
    shape, launcher, restart = preset.topology, preset.launcher, preset.restart
    if request.nnodes is not None:
        fewest, nnodes = worker_group.parse_nnodes(request.nnodes)
        shape = replace(shape, nnodes=nnodes, nnodes_min=fewest)
    if request.nproc_per_node is not None:
        shape = replace(shape, nproc_per_node=worker_group.parse_nproc(request.nproc_per_node))
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
        extra=preset.launcher.args,
    )


def _hosts(preset: Mapping[str, Mapping[str, str]], request: Request) -> dict[str, dict[str, str]]:
    """Return the variables of single nodes. The request comes last, so that it has priority. Raises PlanError."""
    patterns = [*(name for name in preset if name not in request.env_on), *request.env_on]
    hosts = {name: {**preset.get(name, {}), **request.env_on.get(name, {})} for name in patterns}
    for pattern, variables in hosts.items():
        if refusal := env_names.first_refusal(variables):
            raise PlanError(refusal)
        for name, value in variables.items():
            if holds_secret(name, value):
                raise PlanError(
                    f"{name} for hosts {pattern} is a secret, which no plan keeps: give it to all nodes with --env"
                )
    return hosts


def _check_env(request: Request, wished: Mapping[str, str]) -> None:
    """Raise PlanError for a variable that no plan may hold."""
    on_hosts = [pair for env in request.env_on.values() for pair in env.items() if nccl.covers(pair[0])]
    for name, value in (*request.nccl.items(), *on_hosts):
        problem = nccl.error_in(name, value)
        if problem:
            raise PlanError(problem)
    if refusal := env_names.first_refusal(wished):
        raise PlanError(refusal)
