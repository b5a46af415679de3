"""Rules for the command lines of torchrun: options, numbers of ranks and nodes, rendezvous."""

from __future__ import annotations

from collections.abc import Iterator

from ..finding import Finding, Severity
from ..text_formats import whole
from .launcher_calls import LauncherCall
from .lint_rules import DEFAULT_PORT, LOCAL_ADDRESS, issue
from .shell import Word
from .surroundings import Surroundings
from .torchrun_options import Options, read_options, unknown_option

DEFAULT_RENDEZVOUS_PORT = "29400"
"""torchrun's port for c10d."""
STATIC_ONLY = ("node-rank", "master-addr", "master-port")
"""Options that the c10d and etcd rendezvous ignore."""


def check_torchrun(launch: LauncherCall, around: Surroundings) -> Iterator[Finding]:
    options = read_options(launch.words)
    options.opaque = options.opaque or launch.completed
    for word in options.unknown if not launch.legacy else ():
        yield unknown_option(word.text.partition("=")[0], around.at(word.line))
    yield from _mixed(options, around)
    yield from _ranks(options, launch, around)
    yield from _nodes(options, launch, around)
    yield from _port(options, around)
    yield from _rendezvous(options, launch, around)


def _mixed(options: Options, around: Surroundings) -> Iterator[Finding]:
    backend = options.literal("rdzv-backend")
    if backend in ("", "static"):
        return
    given = [name for name in STATIC_ONLY if name in options.values]
    if given:
        names = ", ".join(f"--{name}" for name in given)
        verb = "has" if given[1:] == [] else "have"
        text = f"{names} {verb} no effect on the {backend} rendezvous: nodes are numbered as they join."
        where = around.at(options.values[given[0]].line)
        is_complete = "rdzv-endpoint" in options.values
        severity: Severity = "note" if is_complete else "warning"
        yield issue("L4", where, text, value=f"--{given[0]}", severity=severity)


def _ranks(options: Options, launch: LauncherCall, around: Surroundings) -> Iterator[Finding]:
    """Compare the number of ranks per node with the available GPUs."""
    nproc, ranks = options.values.get("nproc-per-node"), options.number("nproc-per-node")
    if nproc is None:
        if (
            "PET_NPROC_PER_NODE" not in around.env
            and not options.opaque
            and (around.gpus or 0) > 1
            and not launch.legacy
        ):
            text = (
                f"Without --nproc-per-node torchrun starts one rank, and each node has {around.gpus} GPUs."
            )
            remedy = "Add --nproc-per-node gpu."
            yield issue("L35", around.at(launch.line), text, severity="warning", remedy=remedy)
        return
    if nproc.text == "gpu" and (around.gpus == 0 or around.env.get("CUDA_VISIBLE_DEVICES") == ""):
        text = 'There is no GPU: torchrun ends with "Cuda is not available".'
        yield issue("L10", around.at(nproc.line), text, value="--nproc-per-node gpu")
    if ranks is not None:
        yield from ranks_of_node(ranks, around, around.at(nproc.line), "--nproc-per-node")


def _nodes(options: Options, launch: LauncherCall, around: Surroundings) -> Iterator[Finding]:
    """Compare the number of nodes with the available ones."""
    nodes, rank = options.number("nnodes"), options.number("node-rank")
    if nodes is not None and rank is not None and rank >= nodes:
        text = (
            f"--node-rank {rank} is no node of {nodes}: they are 0 to {nodes - 1}, and node 0 is missing."
        )
        yield issue("L35", around.at(options.values["node-rank"].line), text, value=f"--node-rank {rank}")
        return
    if nodes is not None and around.nnodes is not None and nodes != around.nnodes:
        waits = (
            "waits for the others until it gives up" if nodes > around.nnodes else "leaves the others out"
        )
        text = f"torchrun gets {nodes} nodes, but there are {around.nnodes}: it {waits}."
        yield issue("L35", around.at(options.values["nnodes"].line), text, value=f"--nnodes {nodes}")
    elif "nnodes" not in options.values and not options.opaque and (around.nnodes or 1) > 1:
        if "PET_NNODES" in around.env:
            return
        text = f"Without --nnodes each of the {around.nnodes} nodes trains separately."
        yield issue("L35", around.at(launch.line), text, remedy=f"Add --nnodes {around.nnodes}.")


def ranks_of_node(ranks: int, around: Surroundings, where: str, option: str) -> Iterator[Finding]:
    """Compare a number of ranks per node with its GPUs."""
    if not around.gpus or ranks == around.gpus:
        return
    if ranks > around.gpus:
        text = f"{ranks} ranks on a node of {around.gpus} GPUs: those above have none (invalid device ordinal)."
        yield issue("L35", where, text, value=f"{option} {ranks}")
    else:
        text = f"{ranks} ranks on a node of {around.gpus} GPUs: the others are idle."
        yield issue("L35", where, text, value=f"{option} {ranks}", severity="warning")


def _port(options: Options, around: Surroundings) -> Iterator[Finding]:
    if around.owns_nodes:
        return
    for name in ("master-port", "rdzv-endpoint"):
        text = options.literal(name)
        port = text.rpartition(":")[2]
        if port in (DEFAULT_PORT, DEFAULT_RENDEZVOUS_PORT):
            why = f"Port {port} is the default of every job: a second job on the node does not start."
            yield issue("L22", around.at(options.values[name].line), why, value=f"--{name} {text}")
            return


def _rendezvous(options: Options, launch: LauncherCall, around: Surroundings) -> Iterator[Finding]:
    """Check that several nodes have a common rendezvous address."""
    nodes = options.values.get("nnodes")
    if nodes is None or options.opaque or any(name.startswith("PET_") for name in around.env):
        return
    most = whole(nodes.text.rpartition(":")[2]) if nodes.literal else around.nnodes
    if (most or 1) < 2:
        return
    for line, text in _lost(options, around):
        yield issue("L38", around.at(line or launch.line), text)


def _is_head(options: Options, static: bool, around: Surroundings) -> bool:
    """Return True if the line runs only on the first node, which may use localhost."""
    return static and options.literal("node-rank") == "0" and not around.is_task


def _is_static(options: Options) -> bool:
    backend = options.values.get("rdzv-backend")
    return backend is None or (backend.literal and backend.text in ("", "static"))


def _lost(options: Options, around: Surroundings) -> Iterator[tuple[int, str]]:
    """Yield the reasons why the nodes would not find each other, as line (0: the command's) and sentence."""
    if "standalone" in options.switches:
        yield options.switches["standalone"].line, "--standalone makes each node meet itself."
        return
    static = _is_static(options)
    name = "master-addr" if static and "rdzv-endpoint" not in options.values else "rdzv-endpoint"
    address = options.values.get(name)
    if address is None:
        yield 0, f"Without --{name} each node searches the others on itself."
    elif LOCAL_ADDRESS.fullmatch(address.text) and not _is_head(options, static, around):
        yield address.line, f"On each node {address.text} means that node itself."
    if static:
        yield from _same_node(options.values.get("node-rank"), around)


def _same_node(rank: Word | None, around: Surroundings) -> Iterator[tuple[int, str]]:
    if rank is None:
        yield 0, "Without --node-rank each node takes itself for node 0."
    elif rank.text.isdecimal() and around.is_task:
        yield rank.line, f"Every node runs this line, so each takes itself for node {rank.text}."
