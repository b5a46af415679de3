"""Rules about a torchrun command line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..finding import Finding
from . import options
from .commands import Launch, Surroundings
from .nodes import whole
from .options import Options
from .rules import found

STATIC_ONLY = ("node-rank", "master-addr", "master-port")
"""What the c10d and etcd rendezvous do not look at."""
HERE = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[?::1\]?)(:\d+)?")
DEFAULT_PORT = "29500"


def check(launch: Launch, around: Surroundings) -> Iterator[Finding]:
    """Everything about one torchrun."""
    said = options.read(launch.words)
    said.opaque = said.opaque or launch.completed
    if not launch.legacy:
        yield from _unknown(said, around)
    yield from _mixed(said, around)
    yield from _counts(said, launch, around)
    yield from _port(said, around)
    yield from _meeting(said, launch, around)


def _unknown(said: Options, around: Surroundings) -> Iterator[Finding]:
    for word in said.unknown:
        near = options.nearest(word.text)
        name = word.text.partition("=")[0]
        remedy = f"Did you mean {near}?" if near else None
        text = f"torchrun has no option {name} and ends with an error."
        yield found("L3", around.at(word.line), text, value=name, remedy=remedy)


def _mixed(said: Options, around: Surroundings) -> Iterator[Finding]:
    backend = said.known("rdzv-backend")
    if backend in ("", "static"):
        return
    given = [name for name in STATIC_ONLY if name in said.values]
    if given:
        names = ", ".join(f"--{name}" for name in given)
        text = f"{names} say nothing to the {backend} rendezvous: nodes are numbered as they come."
        yield found("L4", around.at(said.values[given[0]].line), text, value=f"--{given[0]}")


def _counts(said: Options, launch: Launch, around: Surroundings) -> Iterator[Finding]:
    """Nodes and ranks against what there is."""
    nproc, nodes = said.values.get("nproc-per-node"), said.number("nnodes")
    if nproc and nproc.text == "gpu" and (around.gpus == 0 or around.env.get("CUDA_VISIBLE_DEVICES") == ""):
        text = 'There is no GPU: torchrun ends with "Cuda is not available".'
        yield found("L10", around.at(nproc.line), text, value="--nproc-per-node gpu")
    ranks = said.number("nproc-per-node")
    if nproc and ranks is not None:
        yield from ranks_of_node(ranks, around, around.at(nproc.line), "--nproc-per-node")
    elif not nproc and not said.opaque and (around.gpus or 0) > 1 and not launch.legacy:
        text = f"Without --nproc-per-node torchrun starts one rank, and each node has {around.gpus} GPUs."
        remedy = "Add --nproc-per-node gpu."
        yield found("L35", around.at(launch.line), text, severity="warning", remedy=remedy)
    if nodes is not None and around.nnodes is not None and nodes != around.nnodes:
        waits = (
            "waits for the others until it gives up" if nodes > around.nnodes else "leaves the others out"
        )
        text = f"torchrun is told {nodes} nodes and there are {around.nnodes}: it {waits}."
        yield found("L35", around.at(said.values["nnodes"].line), text, value=f"--nnodes {nodes}")
    elif "nnodes" not in said.values and not said.opaque and (around.nnodes or 1) > 1:
        text = f"Without --nnodes each of the {around.nnodes} nodes trains alone."
        yield found("L35", around.at(launch.line), text, remedy=f"Add --nnodes {around.nnodes}.")


def ranks_of_node(ranks: int, around: Surroundings, where: str, option: str) -> Iterator[Finding]:
    """So many ranks on nodes of so many GPUs."""
    if not around.gpus or ranks == around.gpus:
        return
    if ranks > around.gpus:
        text = f"{ranks} ranks on a node of {around.gpus} GPUs: those above have none (invalid device ordinal)."
        yield found("L35", where, text, value=f"{option} {ranks}")
    else:
        text = f"{ranks} ranks on a node of {around.gpus} GPUs: the others are idle."
        yield found("L35", where, text, value=f"{option} {ranks}", severity="warning")


def _port(said: Options, around: Surroundings) -> Iterator[Finding]:
    if around.own_nodes:
        return
    for name in ("master-port", "rdzv-endpoint"):
        text = said.known(name)
        if text == DEFAULT_PORT or text.endswith(f":{DEFAULT_PORT}"):
            why = f"Port {DEFAULT_PORT} is everybody's default: a second job on the node does not start."
            yield found("L22", around.at(said.values[name].line), why, value=f"--{name} {text}")
            return


def _meeting(said: Options, launch: Launch, around: Surroundings) -> Iterator[Finding]:
    """Whether several nodes have one place to meet."""
    nodes = said.values.get("nnodes")
    if nodes is None or said.opaque or any(name.startswith("PET_") for name in around.env):
        return
    most = whole(nodes.text.rpartition(":")[2]) if nodes.known else around.nnodes
    if (most or 1) < 2:
        return
    for line, text in _lost(said, around):
        yield found("L38", around.at(line or launch.line), text)


def _is_head(said: Options, static: bool, around: Surroundings) -> bool:
    """Whether the line is for the first node alone, which may call itself localhost."""
    return static and said.known("node-rank") == "0" and not around.every_node


def _lost(said: Options, around: Surroundings) -> Iterator[tuple[int, str]]:
    """Why the nodes would not find each other: line (0: the command's) and sentence."""
    if "standalone" in said.switches:
        yield said.switches["standalone"].line, "--standalone makes each node meet itself."
        return
    static = said.known("rdzv-backend") in ("", "static") and not (
        "rdzv-backend" in said.values and not said.values["rdzv-backend"].known
    )
    name = "master-addr" if static and "rdzv-endpoint" not in said.values else "rdzv-endpoint"
    address = said.values.get(name)
    if address is None:
        yield 0, f"Without --{name} each node looks for the others on itself."
    elif HERE.fullmatch(address.text) and not _is_head(said, static, around):
        yield address.line, f"{address.text} is another place on each node."
    rank = said.values.get("node-rank")
    if static and rank is None:
        yield 0, "Without --node-rank each node takes itself for node 0."
    elif static and rank is not None and rank.text.isdecimal() and around.every_node:
        yield rank.line, f"Every node runs this line, so each takes itself for node {rank.text}."
