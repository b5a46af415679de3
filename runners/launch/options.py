"""The table of launch options, from which the command line, the launch form and docs/cli.md are made. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PLANS = ("launch", "plan", "lint")
"""What takes a preset and a script."""
ALL = (*PLANS, "exec")
STARTS = ("launch", "exec")

RUN, HOSTS, NODES = "", "hosts of your own", "nodes through SkyPilot"
"""Headings in `--help`."""
ABOUT = {
    HOSTS: "reached via ssh; they need nothing but Python",
    NODES: "with --on sky (the cheapest), or --on INFRA",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOption:
    """One option of the command line, and the field of the launch form that means the same."""

    flags: tuple[str, ...]
    help: str
    """In lower case, without a final period: `--help` prints it, and with `more` the form and the documentation."""
    takes: str = ""
    """The placeholder of its value; "" for a switch."""
    verbs: tuple[str, ...] = ALL
    heading: str = RUN
    repeat: bool = False
    parse: str = ""
    """How its value is read: "count", "seconds", "minutes" or "port"; "": as it is."""
    default: str | None = None
    more: str = ""
    """A sentence for the documentation, and for the form where there is a `field`."""
    field: str = ""
    """The field of LaunchForm; "" where the form has none."""
    label: str = ""
    example: str = ""
    """What the form shows while the field is empty."""

    @property
    def name(self) -> str:
        """As `argparse` keeps its value: "nproc_per_node"."""
        return next(flag for flag in self.flags if flag.startswith("--"))[2:].replace("-", "_")

    @property
    def summary(self) -> str:
        """The line of `--help`."""
        return f"{self.help}; repeatable" if self.repeat else self.help

    @property
    def sentences(self) -> str:
        """The line of the form."""
        first = f"{self.help[0].upper()}{self.help[1:]}."
        return f"{first} {self.more}" if self.more else first


def _of_nodes(flag: str, takes: str, text: str, **more: Any) -> LaunchOption:
    """An option about nodes that SkyPilot brings."""
    verbs = (*PLANS, "candidates")
    return LaunchOption(flags=(flag,), takes=takes, help=text, verbs=verbs, heading=NODES, **more)


OPTIONS: tuple[LaunchOption, ...] = (
    LaunchOption(
        flags=("--nnodes", "--num-nodes"),
        takes="N|MIN:MAX",
        verbs=PLANS,
        help="nodes (this machine: 1)",
        more="MIN:MAX: an elastic run.",
        field="nodes",
        label="nodes",
    ),
    LaunchOption(
        flags=("--nproc-per-node",), takes="N|gpu|cpu|auto", verbs=PLANS, help="ranks on each node"
    ),
    LaunchOption(
        flags=("--on",),
        takes="PLACE",
        verbs=PLANS,
        help="where: local, sky, or one of SkyPilot's places",
        more="Places are aws, slurm/lab, …; local is this machine, which it is without it, unless `launch.place` of the"
        " settings says otherwise.",
        field="place",
        label="place",
        example="local",
    ),
    LaunchOption(
        flags=("--set",),
        takes="FIELD=VALUE",
        verbs=PLANS,
        repeat=True,
        help="change a preset's field",
        more="[presets.md](presets.md) has the fields.",
    ),
    LaunchOption(
        flags=("--adopt",),
        verbs=PLANS,
        help="apply the preset where the script calls DistributedDataParallel itself",
        more="For a plain script that nobody edits, with ddp, zero1 or fsdp2: [adopt.md](adopt.md).",
        field="adopt",
        label="adopt",
        example="false",
    ),
    LaunchOption(
        flags=("--python",),
        takes="PATH",
        verbs=PLANS,
        help="interpreter of the training environment",
        more="Without it: that of the active virtual or conda environment, else distui's own if it has torch, else"
        " `python3`.",
    ),
    LaunchOption(
        flags=("--port",),
        takes="PORT",
        verbs=PLANS,
        parse="port",
        help="rendezvous port (default: a free one)",
        more="For several nodes the default follows from the run's id.",
    ),
    LaunchOption(flags=("-m", "--module"), verbs=PLANS, help="SCRIPT is a module, as for `python -m`"),
    LaunchOption(flags=("--no-python",), verbs=PLANS, help="execute SCRIPT itself, without python"),
    LaunchOption(
        flags=("--name",),
        takes="NAME",
        help="name of the run (default: that of the script)",
        more="Two live runs never share a name.",
        field="name",
        label="name",
        example="made from the script",
    ),
    LaunchOption(
        flags=("--env",),
        takes="K=V",
        repeat=True,
        help="variable for every rank",
        field="env",
        label="environment",
        example="e.g. K=V K2=V2",
    ),
    LaunchOption(
        flags=("--nccl",),
        takes="K=V",
        repeat=True,
        help="NCCL variable, NCCL_ may be left out",
        more="It is checked against the catalogue; `distui presets nccl NAME` says what a variable does.",
    ),
    LaunchOption(
        flags=("--nccl-preset",),
        takes="NAME",
        repeat=True,
        help="settings of NCCL by name (`distui presets nccl` lists them)",
        more="`--nccl` and `--env` win over them.",
    ),
    LaunchOption(
        flags=("--env-on",),
        takes="HOSTS:K=V",
        repeat=True,
        help="variable for the nodes whose host name matches, as in gpu0?:NCCL_SOCKET_IFNAME==eth1",
    ),
    LaunchOption(
        flags=("--no-hook",),
        help="do not load distui's hook into the ranks",
        more="No steps, no live `NCCL_DEBUG`, no dumps.",
    ),
    LaunchOption(
        flags=("--signal",),
        takes="REGEX",
        repeat=True,
        help="read training signals in the output with a pattern",
        more="Its named groups say what it reads: [telemetry.md](telemetry.md#a-pattern-of-your-own).",
    ),
    LaunchOption(
        flags=("--grace",), takes="SECONDS", parse="seconds", help="time between SIGTERM and SIGKILL"
    ),
    LaunchOption(
        flags=("--save-on",),
        takes="SIGNAL|FILE:PATH",
        help="what asks the script to save a checkpoint",
        more="`distui restart --save-first` uses it: [scripts.md](scripts.md#save-on-demand).",
    ),
    LaunchOption(
        flags=("--notify",),
        takes="WAY[:RULES]",
        repeat=True,
        help="send notices of the run on a way of the settings",
        more="As in `team:hang,gave-up`; `off`: on none. [notifications.md](notifications.md) has ways and rules.",
        field="notify",
        label="notify",
        example="as the settings say",
    ),
    LaunchOption(
        flags=("--log-cap",),
        takes="SIZE|off",
        parse="cap",
        help="leave out the middle of a rank's log beyond SIZE on disk",
        more="From 16MiB on, as in 200MB; without it as `logs.cap` of the settings says, else logs are kept whole:"
        " [telemetry.md](telemetry.md#logs).",
    ),
    LaunchOption(
        flags=("--restarts",),
        takes="N",
        parse="count",
        help="failures in a row after which the ranks restart",
        more="0: no failure restarts them. Ten minutes without a failure start the count again.",
    ),
    LaunchOption(
        flags=("--json",),
        help="one JSON object on stdout",
        more="The plan of `plan` and with `--dry-run`; the findings of `lint`; `run`, `name`, `path` with `--detach`;"
        " else the status at the end.",
    ),
    LaunchOption(flags=("--detach",), verbs=STARTS, help="start the run and return"),
    LaunchOption(
        flags=("--quiet",),
        verbs=STARTS,
        help="without a terminal: do not print the ranks' output",
        more="`distui logs` has it.",
    ),
    LaunchOption(flags=("-n", "--dry-run"), verbs=STARTS, help="print the plan without starting anything"),
    LaunchOption(
        flags=("--hosts",),
        takes="A,B,…",
        verbs=(*PLANS, "doctor"),
        heading=HOSTS,
        help="one node per host; the first is the head",
        more="[nodes.md](nodes.md) has the rest.",
    ),
    LaunchOption(
        flags=("--hostfile",),
        takes="FILE",
        verbs=(*PLANS, "doctor"),
        heading=HOSTS,
        help="file with one host per line: HOST [slots=8]",
    ),
    LaunchOption(
        flags=("--head-addr",),
        takes="ADDRESS",
        verbs=(*PLANS, "doctor"),
        heading=HOSTS,
        help="address at which the other hosts reach the first one (default: as ssh does)",
    ),
    LaunchOption(
        flags=("--ssh-config",),
        takes="FILE",
        verbs=(*PLANS, "doctor", "ls", "attach"),
        heading=HOSTS,
        help="ssh configuration to use instead of ~/.ssh/config",
    ),
    _of_nodes("--task", "FILE", "a SkyPilot task of your own instead of PRESET and SCRIPT"),
    _of_nodes(
        "--gpus",
        "NAME:N",
        "accelerators of each node, as in H100:8",
        field="gpus",
        label="GPUs",
        example="e.g. H100:8",
    ),
    _of_nodes(
        "--cpus",
        "N|N+",
        "CPUs of each node; with a +, at least so many",
        field="cpus",
        label="CPUs",
        example="e.g. 8+",
    ),
    _of_nodes("--memory", "GB|GB+", "memory of each node"),
    _of_nodes("--spot", "", "use spot instances"),
    _of_nodes("--region", "NAME", "cloud region"),
    _of_nodes("--image", "IMAGE", "VM image of the cloud, or docker:NAME"),
    _of_nodes("--network-tier", "best|standard", "network between the nodes"),
    _of_nodes(
        "--any-of",
        "K=V,…",
        "alternative resources, e.g. infra=aws,gpus=A100:8",
        repeat=True,
        more="The cheapest that is free is taken.",
    ),
    _of_nodes("--cluster", "NAME", "cluster name; a cluster that is up is reused"),
    _of_nodes(
        "--workdir",
        "DIR",
        "directory to copy to the nodes (default: this one)",
        more="The ranks start there; also with `--hosts`, where nothing is copied without it.",
    ),
    _of_nodes("--setup", "COMMANDS", "shell commands that prepare each node"),
    _of_nodes("--mount", "DST=SRC", "path on the nodes = path here, or s3://…", repeat=True),
    _of_nodes("--autostop", "MIN", "tear the cluster down after MIN idle minutes", parse="minutes"),
    _of_nodes("--managed", "", "run as a managed job, which SkyPilot recovers"),
    _of_nodes("--retry-until-up", "", "retry until such nodes are available"),
)


def options(verb: str, heading: str | None = None) -> list[LaunchOption]:
    """The options of a verb, in the order of `--help`; of one heading, where it is given."""
    return [each for each in OPTIONS if verb in each.verbs and heading in (None, each.heading)]


def option(flag: str) -> LaunchOption:
    """The option that is written like this. Raises KeyError."""
    for each in OPTIONS:
        if flag in each.flags:
            return each
    raise KeyError(flag)


def of_form(field: str) -> LaunchOption | None:
    """The option that a field of the launch form means; None: it has none."""
    return next((each for each in OPTIONS if each.field == field), None)
