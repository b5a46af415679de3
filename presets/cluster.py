"""GPUs and clusters as users write them: a GPU's name, count and memory, and the nodes of a launch. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .finding import PlanError, nearest

# -----------------------------------------------------------------------------------------------------------
# GPUs as users name them: "8xA100-80GB", "H100:8", "L4" → how many on a node, and how much memory each has.


GB = 10**9

MEMORY_GB: Mapping[str, int] = {
    "A10": 24, "A10G": 24, "A100": 40, "A100-40GB": 40, "A100-80GB": 80, "A30": 24, "A40": 48, "A6000": 48,
    "B200": 180, "B300": 270, "GB200": 186, "GH200": 96, "H100": 80, "H100-80GB": 80, "H100-NVL": 94, "H200": 141,
    "L4": 24, "L40": 48, "L40S": 48, "MI250X": 128, "MI300X": 192, "MI325X": 256, "P100": 16, "RTX3090": 24,
    "RTX4090": 24, "RTX5090": 32, "RTX6000-ADA": 48, "T4": 16, "V100": 16, "V100-32GB": 32,
}  # fmt: skip
"""GB (10⁹ bytes) on each, from the makers' data sheets; names as SkyPilot's catalogue has them."""

_GPUS = re.compile(r"(?:(\d+)\s*[x×*]\s*)?([A-Za-z][A-Za-z0-9-]*)(?::(\d+))?")
_OWN_SIZE = re.compile(r"-(\d+)GB?$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeGpus:
    """The GPUs of one node."""

    name: str
    count: int
    memory_gb: float
    """GB (10⁹ bytes) on each."""


def parse_gpus(text: str, memory_gb: float | None = None) -> NodeGpus:
    """What "8xA100-80GB" or "A100-80GB:8" means; `memory_gb` where a GPU is not known by name. Raises PlanError."""
    match = _GPUS.fullmatch(text.strip())
    counts = [int(part) for part in match.group(1, 3) if part is not None] if match else []
    if match is None or len(counts) > 1 or 0 in counts:
        raise PlanError(f"--gpus {text}: write COUNTxNAME, the count of one node, as in 8xA100-80GB.")
    name = match[2].upper()
    memory = memory_gb if memory_gb is not None else MEMORY_GB.get(name) or _size_in_name(name)
    if memory is None:
        near = nearest(name, MEMORY_GB)
        hint = f"did you mean {near}? Else say" if near else "say"
        raise PlanError(
            f"--gpus {text}: no GPU {match[2]} is known here; {hint} its memory with --gpu-memory GB."
        )
    return NodeGpus(name=name, count=counts[0] if counts else 1, memory_gb=memory)


def _size_in_name(name: str) -> int | None:
    """The size that stands in a name, as in "X100-64GB"."""
    size = _OWN_SIZE.search(name)
    return int(size[1]) if size else None


# -----------------------------------------------------------------------------------------------------------
# Which node of how many this is, as whatever started the job says in its environment. Pure.


_RANGE = re.compile(r"(\d+)(?:-(\d+))?$")
_ITEM = re.compile(r"[^,\[]*(?:\[[^\]]*\][^,\[]*)*")
MOST_NODES = 1 << 16


@dataclass(frozen=True, slots=True)
class Seat:
    """One node's place among the nodes of a job."""

    node: int
    """From 0; the head is 0."""
    addresses: tuple[str, ...]
    """Of every node, by number; the others reach it there."""
    gpus: int | None
    """GPUs that were given to the job on each node; None when nobody says."""
    source: str
    """"SkyPilot", "PBS", "Slurm", "the environment" or "the launch"."""


def seat(
    env: Mapping[str, str],
    nnodes: int,
    nnodes_min: int | None = None,
    *,
    nodefile: str | None = None,
    host: str = "",
) -> Seat:
    """This node's seat: SkyPilot's word first (its steps under Slurm are numbered from 0 each), then that of PBS, of
    Slurm, then NODE_RANK and NODE_IPS.

    Variables: docs of SkyPilot ("Distributed jobs"), qsub(1B), srun(1), and torchrun's own names. `nodefile` is the
    text of the file that PBS_NODEFILE names, None where there is none that can be read; `host` is this node's name.
    Raises PlanError when they do not say, contradict each other, or are not the plan's `nnodes`.
    """
    if "SKYPILOT_NODE_RANK" in env:
        claimed = _skypilot(env)
    elif "PBS_NODEFILE" in env:
        claimed = _agreed(env, _pbs(env, nodefile, host))
    elif "SLURM_NODEID" in env:
        claimed = _agreed(env, _slurm(env))
    elif "NODE_RANK" in env:
        claimed = _plain(env)
    elif nnodes == 1:
        claimed = Seat(0, ("127.0.0.1",), None, "the launch")
    else:
        raise PlanError(
            "Nothing says which node this is: SKYPILOT_NODE_RANK, PBS_NODEFILE, SLURM_NODEID and NODE_RANK are all "
            "unset."
        )
    return check(claimed, nnodes, nnodes_min)


def given(node: int, addresses: Sequence[str], nnodes: int, nnodes_min: int | None = None) -> Seat:
    """The seat that the launch itself gave. Raises PlanError."""
    return check(Seat(node, tuple(addresses), None, "the launch"), nnodes, nnodes_min)


def check(seat: Seat, nnodes: int, nnodes_min: int | None) -> Seat:
    """`seat`, if the plan fits it. Raises PlanError."""
    count, least = len(seat.addresses), nnodes if nnodes_min is None else nnodes_min
    if not 0 <= seat.node < count:
        raise PlanError(f"{seat.source} says that this is node {seat.node} of {count}: that cannot be.")
    if not least <= count <= nnodes:
        asked = nnodes if least == nnodes else f"{least} to {nnodes}"
        raise PlanError(
            f"{seat.source} gives {count} nodes, and the plan is for {asked}: launch it with --nnodes {count}."
        )
    return seat


def _skypilot(env: Mapping[str, str]) -> Seat:
    addresses = tuple(env.get("SKYPILOT_NODE_IPS", "").split())
    count = _number(env, "SKYPILOT_NUM_NODES")
    if count is not None and count != len(addresses):
        raise PlanError(
            f"SKYPILOT_NUM_NODES is {count}, and SKYPILOT_NODE_IPS names {len(addresses)} nodes: they disagree."
        )
    node = _number(env, "SKYPILOT_NODE_RANK")
    return Seat(node or 0, addresses, _number(env, "SKYPILOT_NUM_GPUS_PER_NODE"), "SkyPilot")


def _slurm(env: Mapping[str, str]) -> Seat:
    names = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST", "")
    addresses = tuple(expand(names))
    count = _number(env, "SLURM_STEP_NUM_NODES")
    if count is None:
        count = _number(env, "SLURM_NNODES")
    if count is not None and count != len(addresses):
        raise PlanError(
            f"Slurm says {count} nodes, and its list {names!r} has {len(addresses)}: they disagree."
        )
    return Seat(_number(env, "SLURM_NODEID") or 0, addresses, _number(env, "SLURM_GPUS_ON_NODE"), "Slurm")


def _agreed(env: Mapping[str, str], seat: Seat) -> Seat:
    """`seat`, where the plain variables and Slurm's say nothing else. Raises PlanError."""
    others = [("NODE_RANK", "NNODES")]
    if seat.source != "Slurm":
        others.append(("SLURM_NODEID", "SLURM_NNODES"))
    for rank, count in others:
        node, nodes = _number(env, rank), _number(env, count)
        if node is not None and node != seat.node:
            raise PlanError(f"{seat.source} says node {seat.node}, and {rank} is {node}: they disagree.")
        if node is not None and nodes is not None and nodes != len(seat.addresses):
            raise PlanError(
                f"{seat.source} gives {len(seat.addresses)} nodes, and {count} is {nodes}: they disagree."
            )
    return seat


PBS_RANKS = (
    ("PALS_NODEID", ""),
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PBS_NODENUM", ""),
)
"""Variables by which mpiexec and pbsdsh number what they start, and how many that are; with one process a node these
are the nodes."""


def _pbs(env: Mapping[str, str], nodefile: str | None, host: str) -> Seat:
    """PBS names each node once a slot, the head first. Raises PlanError."""
    if not env.get("PBS_JOBID"):
        raise PlanError("PBS_NODEFILE is set, and PBS_JOBID is not: this is no job of PBS.")
    if nodefile is None:
        raise PlanError(
            f"PBS_NODEFILE is {env['PBS_NODEFILE']}, and there is no such file that can be read."
        )
    addresses = tuple(dict.fromkeys(nodefile.split()))
    if not addresses:
        raise PlanError(f"PBS_NODEFILE is {env['PBS_NODEFILE']}, which names no node.")
    numbers = _pbs_numbers(env, len(addresses))
    short = [name.partition(".")[0] for name in addresses]
    if host and short.count(host.partition(".")[0]) == 1:
        numbers["the place of this host in PBS_NODEFILE"] = short.index(host.partition(".")[0])
    if len(set(numbers.values())) > 1:
        listed = ", ".join(f"{name} says node {number}" for name, number in numbers.items())
        raise PlanError(f"{listed}: they disagree.")
    if not numbers and len(addresses) > 1:
        names = ", ".join(name for name, _ in PBS_RANKS)
        raise PlanError(
            f"PBS gives {len(addresses)} nodes, and nothing says which one this is: {names} are all unset, and "
            "PBS_NODEFILE does not name this host."
        )
    return Seat(next(iter(numbers.values()), 0), addresses, None, "PBS")


def _pbs_numbers(env: Mapping[str, str], count: int) -> dict[str, int]:
    """What the variables say. Raises PlanError where more than one process a node was started."""
    numbers = {}
    for name, size in PBS_RANKS:
        number, of = _number(env, name), _number(env, size) if size else None
        if number is None:
            continue
        if of is not None and of != count:
            raise PlanError(
                f"{size} is {of}, and PBS gives {count} nodes: start one process a node, as in mpiexec -n {count} "
                "--ppn 1."
            )
        numbers[name] = number
    return numbers


def _plain(env: Mapping[str, str]) -> Seat:
    addresses = tuple(env.get("NODE_IPS", "").replace(",", " ").split())
    count = _number(env, "NNODES")
    if count is not None and count != len(addresses):
        raise PlanError(f"NNODES is {count}, and NODE_IPS names {len(addresses)} nodes: they disagree.")
    return Seat(_number(env, "NODE_RANK") or 0, addresses, None, "the environment")


def _number(env: Mapping[str, str], name: str) -> int | None:
    """The number in a variable, None without one. Raises PlanError for anything else."""
    text = env.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise PlanError(f"{name} is {text!r}, and must be a number.")
    return int(text)


def expand(names: str) -> list[str]:
    """The names in one of Slurm's host lists: "gpu[01-03,7],login" → gpu01 gpu02 gpu03 gpu7 login.

    Raises PlanError for what is no such list.
    """
    if names.count("[") != names.count("]"):
        raise PlanError(f"{names!r} is no list of hosts as Slurm writes them.")
    hosts: list[str] = []
    for item in filter(None, _ITEM.findall(names)):
        hosts += _expand_item(item, names)
    return hosts


def _expand_item(item: str, names: str) -> list[str]:
    before, bracket, rest = item.partition("[")
    if not bracket:
        return [before]
    inside, _, after = rest.partition("]")
    numbers: list[str] = []
    for part in inside.split(","):
        match = _RANGE.match(part)
        if match is None:
            raise PlanError(f"{names!r} is no list of hosts as Slurm writes them.")
        first, last = match[1], match[2] or match[1]
        if int(last) - int(first) > MOST_NODES:
            raise PlanError(f"{names!r} names more than {MOST_NODES} hosts.")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return [before + number + tail for number in numbers for tail in _expand_item(after, names)]


def name_of_gpu(model: str) -> str:
    """ "NVIDIA A100-SXM4-80GB" → "A100-80GB"; "" where no known GPU is meant."""
    words = set(re.split(r"[\s-]+", model.upper().replace("GEFORCE ", "").replace("RTX ", "RTX")))
    sizes = {word for word in words if re.fullmatch(r"\d+GB", word)}
    fitting = [name for name in MEMORY_GB if set(name.split("-")) <= words]
    if not fitting:
        return ""
    best = max(fitting, key=lambda name: (name.count("-"), len(name)))
    size = next(iter(sizes), "")
    return best if not size or size == f"{MEMORY_GB[best]}GB" else ""
