"""The user's request of a launch. Pure.

Each field declares its option. The command line, the launch form, the Python API, MCP, `rerun` and docs/cli.md use this
declaration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from .launch_option import CANDIDATES, DOCTOR, HOSTS, NODES, PLANS, RUN, SSH_CONFIG, STARTS, LaunchOption


def _option(flags: str, takes: str, help: str, default: Any = None, **about: Any) -> Any:
    """Declare a field of a request with its option."""
    declared = LaunchOption(flags=tuple(flags.split()), takes=takes, help=help, **about)
    if isinstance(default, dict):
        return field(default_factory=dict, metadata={"option": declared})
    return field(default=default, metadata={"option": declared})


_of_plans = partial(_option, verbs=PLANS)
_of_hosts = partial(_option, heading=HOSTS)
_of_nodes = partial(_option, verbs=CANDIDATES, heading=NODES)


@dataclass(frozen=True, slots=True)
class Named:
    """A host that the user named."""

    destination: str
    """In ssh's form: a name, an alias of the user's configuration, user@host."""
    slots: int | None = None
    """Ranks on it, or None."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A script under a preset, a command, or a SkyPilot task, with all options. None means the preset's value."""

    preset: str = ""
    """Name of the preset, or "" for a command or a task."""
    script: str | None = None
    """Script, module (`module`) or program (`no_python`)."""
    args: tuple[str, ...] = ()
    command: tuple[str, ...] | None = None
    """Any program, run unchanged on this machine."""

    nnodes: int | str | None = _of_plans(
        "--nnodes --num-nodes",
        "N|MIN:MAX",
        "nodes (this machine: 1)",
        more="MIN:MAX: an elastic run.",
        label="nodes",
    )
    nproc_per_node: int | str | None = _of_plans(
        "--nproc-per-node",
        "N|gpu|cpu|auto",
        "ranks on each node (default: the preset's)",
        read="count",
        form="nproc",
    )
    on: str = _of_plans(
        "--on",
        "PLACE",
        "where: local, sky, or one of SkyPilot's places",
        "local",
        more="Places are aws, slurm/lab, …; local is this machine, which it is without it, unless `launch.place` of the"
        " settings says otherwise.",
        form="place",
        label="place",
        example="local",
    )
    overrides: tuple[str, ...] = _of_plans(
        "--set",
        "FIELD=VALUE",
        "change a preset's field",
        (),
        repeat=True,
        form="overrides",
        more="[presets.md](presets.md) has the fields.",
    )
    adopt: bool = _of_plans(
        "--adopt",
        "",
        "patch the script's DDP() call to use the preset",
        False,
        more="For a plain script that nobody edits, with ddp, zero1 or fsdp2: [adopt.md](adopt.md).",
        label="adopt",
        example="false",
    )
    python: str | None = _of_plans(
        "--python",
        "PATH",
        "interpreter of the training environment",
        opens=True,
        more="Without it: that of the active virtual or conda environment, else distui's own if it has torch, else"
        " `python3`.",
    )
    port: int | None = _of_plans(
        "--port",
        "PORT",
        "rendezvous port (default: a free one)",
        parse="port",
        more="For several nodes the default follows from the run's id.",
    )
    module: bool = _of_plans("-m --module", "", "SCRIPT is a module, as for `python -m`", False)
    no_python: bool = _of_plans("--no-python", "", "execute SCRIPT itself, without python", False)
    name: str | None = _option(
        "--name",
        "NAME",
        "name of the run (default: that of the script)",
        more="Names are unique among live runs.",
        label="name",
        example="made from the script",
    )
    env: Mapping[str, str] = _option(
        "--env",
        "K=V",
        "variable for every rank",
        {},
        repeat=True,
        read="env",
        label="environment",
        example="e.g. K=V K2=V2",
    )
    nccl: Mapping[str, str] = _option(
        "--nccl",
        "K=V",
        "NCCL variable, NCCL_ may be left out",
        {},
        repeat=True,
        read="nccl",
        form="nccl_debug",
        more="It is checked against the catalogue; `distui presets nccl NAME` says what a variable does.",
    )
    nccl_presets: tuple[str, ...] = _option(
        "--nccl-preset",
        "NAME",
        "settings of NCCL by name (`distui presets nccl` lists them)",
        (),
        repeat=True,
        form="nccl_presets",
        more="`--nccl` and `--env` win over them.",
    )
    env_on: Mapping[str, Mapping[str, str]] = _option(
        "--env-on",
        "HOSTS:K=V",
        "variable for the nodes whose host name matches, as in gpu0?:NCCL_SOCKET_IFNAME=eth1",
        {},
        repeat=True,
        read="env_on",
    )
    hook: bool | None = _option(
        "--no-hook",
        "",
        "do not load distui's hook, which reports from inside each rank",
        read="no",
        more="Without it: no steps, no live `NCCL_DEBUG`, no dumps.",
    )
    signals: tuple[str, ...] = _option(
        "--signal",
        "REGEX",
        "read metrics from the output with a pattern",
        (),
        repeat=True,
        more="Its named groups say what it reads: [telemetry.md](telemetry.md#a-pattern-of-your-own).",
    )
    grace_s: float | None = _option(
        "--grace",
        "SECONDS",
        "time between SIGTERM and SIGKILL (default: the preset's; exec: 30)",
        parse="seconds",
    )
    save_on: str | None = _option(
        "--save-on",
        "SIGNAL|FILE:PATH",
        "signal or file that tells the script to save a checkpoint",
        more="`distui restart --save-first` uses it: [scripts.md](scripts.md#save-on-demand).",
    )
    notify: tuple[str, ...] = _option(
        "--notify",
        "CHANNEL[:RULES]",
        "send notifications of the run to a configured channel",
        (),
        repeat=True,
        more="As in `team:hang,gave-up`; `off`: to none. [notifications.md](notifications.md) has channels and rules.",
        label="notify",
        example="as the settings say",
    )
    log_cap: int | None = _option(
        "--log-cap",
        "SIZE|off",
        "drop the middle of a rank's log beyond SIZE on disk",
        parse="cap",
        more="From 16MiB on, as in 200MB; without it as `logs.cap` of the settings says, else logs are kept whole:"
        " [telemetry.md](telemetry.md#logs).",
    )
    restart_limit: int | None = _option(
        "--restarts",
        "N",
        "restart after at most N consecutive failures (default: the preset's; exec: 0)",
        parse="count",
        more="0: no failure restarts them. Ten minutes without a failure start the count again.",
    )

    hosts: tuple[Named, ...] = _of_hosts(
        "--hosts",
        "A,B,…",
        "one node per host; the first is the head",
        (),
        verbs=DOCTOR,
        read="hosts",
        form="place",
        more="[nodes.md](nodes.md) has the rest.",
    )
    hostfile: str | None = _of_hosts(
        "--hostfile",
        "FILE",
        "file with one host per line: HOST [slots=8]",
        form="place",
        verbs=DOCTOR,
        opens=True,
    )
    head_addr: str | None = _of_hosts(
        "--head-addr",
        "ADDRESS",
        "address at which the other hosts reach the first one (default: as ssh does)",
        verbs=DOCTOR,
    )
    ssh_config: str | None = field(default=None, metadata={"option": SSH_CONFIG})

    task: str | None = _of_nodes(
        "--task", "FILE", "a SkyPilot task of your own instead of PRESET and SCRIPT", opens=True, alone=True
    )
    gpus: str | None = _of_nodes(
        "--gpus",
        "NAME:N",
        "accelerators of each node, as in H100:8 or 8xH100",
        read="gpus",
        label="GPUs",
        example="e.g. H100:8",
    )
    cpus: str | None = _of_nodes(
        "--cpus",
        "N|N+",
        "CPUs of each node; with a +, at least so many",
        label="CPUs",
        example="e.g. 8+",
    )
    memory: str | None = _of_nodes("--memory", "GB|GB+", "memory of each node")
    spot: bool = _of_nodes("--spot", "", "use spot instances", False)
    region: str | None = _of_nodes("--region", "NAME", "cloud region")
    image: str | None = _of_nodes("--image", "IMAGE", "VM image of the cloud, or docker:NAME")
    network_tier: str | None = _of_nodes("--network-tier", "best|standard", "network between the nodes")
    any_of: tuple[Mapping[str, str], ...] = _of_nodes(
        "--any-of",
        "K=V,…",
        "alternative resources, e.g. infra=aws,gpus=A100:8",
        (),
        repeat=True,
        read="any_of",
        more="The cheapest that is free is taken.",
    )
    cluster: str | None = _of_nodes("--cluster", "NAME", "cluster name; a cluster that is up is reused")
    workdir: str | None = _of_nodes(
        "--workdir",
        "DIR",
        "directory to copy to the nodes (default: this one)",
        more="The ranks start there; also with `--hosts`, where nothing is copied without it.",
    )
    setup: str | None = _of_nodes("--setup", "COMMANDS", "shell commands that prepare each node")
    mounts: Mapping[str, str] = _of_nodes(
        "--mount",
        "DST=SRC",
        "path on the nodes = path here, or s3://…",
        {},
        repeat=True,
        read="mounts",
    )
    autostop_min: int | None = _of_nodes(
        "--autostop", "MIN", "tear the cluster down after MIN idle minutes", parse="minutes"
    )
    managed: bool = _of_nodes("--managed", "", "run as a managed job, which SkyPilot recovers", False)
    retry_until_up: bool = _of_nodes("--retry-until-up", "", "retry until such nodes are available", False)

    @property
    def through_sky(self) -> bool:
        """Return True if SkyPilot provides the nodes."""
        return self.task is not None or self.on != "local"

    @property
    def infra(self) -> str | None:
        """SkyPilot's place for the nodes, such as "slurm/lab/gpu" or "aws/us-east-1"; None for the cheapest."""
        return None if self.on in ("local", "sky") else self.on


REQUEST_OPTIONS: Mapping[str, LaunchOption] = {
    each.name: each.metadata["option"] for each in fields(Request) if each.metadata
}
"""Field of `Request` → its option, in the order of `--help`."""

FORM_OPTIONS = {name: each for name, each in REQUEST_OPTIONS.items() if not (each.form or each.alone)}
"""Options that `LaunchForm.options` holds."""

COMMAND_LINE_OPTIONS = (
    LaunchOption(
        flags=("--json",),
        takes="",
        help="one JSON object on stdout",
        more="The plan of `plan` and with `--dry-run`; the findings of `lint`; `run`, `name`, `path` with `--detach`;"
        " else the status at the end.",
    ),
    LaunchOption(flags=("--detach",), takes="", verbs=STARTS, help="start the run and return"),
    LaunchOption(
        flags=("--quiet",),
        takes="",
        verbs=STARTS,
        help="without a terminal: do not print the ranks' output",
        more="`distui logs` has it.",
    ),
    LaunchOption(
        flags=("-n", "--dry-run"), takes="", verbs=STARTS, help="print the plan without starting anything"
    ),
    LaunchOption(
        flags=("--try",),
        takes="N",
        verbs=("plan",),
        parse="count",
        help="with --adopt: run N steps on this machine without and with it, and compare the losses",
        more="On 2 ranks, or as many as `--nproc-per-node` says: [adopt.md](adopt.md#try-it-first).",
    ),
)
"""Options for the output and the wait of a command, which are no part of a request."""

OPTIONS: tuple[LaunchOption, ...] = (
    *(each for each in REQUEST_OPTIONS.values() if each.heading == RUN),
    *COMMAND_LINE_OPTIONS,
    *(each for each in REQUEST_OPTIONS.values() if each.heading != RUN),
)


def options(verb: str, heading: str | None = None) -> list[LaunchOption]:
    """Return the options of a verb in the order of `--help`, of one heading if it is given."""
    return [each for each in OPTIONS if verb in each.verbs and heading in (None, each.heading)]


def option(flag: str) -> LaunchOption:
    """Return the option with this flag. Raises KeyError."""
    for each in OPTIONS:
        if flag in each.flags:
            return each
    raise KeyError(flag)
