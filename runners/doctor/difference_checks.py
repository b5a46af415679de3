"""Differences between the nodes of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ...presets.finding import Finding, Severity
from ..run.formatting import agreeing, listed
from .examined_node import ExaminedNode
from .node_checks import CLOCK_S

MOST_NAMED = 6


class Difference(NamedTuple):
    """A value that should be equal on all nodes."""

    id: str
    severity: Severity
    phrase: str
    """Format of a value after "NODE has"."""
    value_of: Callable[[ExaminedNode], object]
    """Returns None if the value is unknown."""
    why: str
    remedy: str


def _training(name: str) -> Callable[[ExaminedNode], object]:
    return lambda node: node.get("training", name)


def _nccl(node: ExaminedNode) -> str | None:
    """Return NCCL's settings. The environment overrides NCCL's files."""
    if node.get("env") is None:
        return None
    settings = {
        name: value for name, value in node.settings.items() if name.startswith(("NCCL_", "TORCH_NCCL_"))
    }
    return " ".join(f"{name}={value}" for name, value in sorted(settings.items())) or "none"


def _mtu(node: ExaminedNode) -> object:
    face = node.interface
    return None if face is None else face["mtu"]


def _minor(node: ExaminedNode) -> str | None:
    version = node.get("training", "python")
    return None if version is None else ".".join(str(version).split(".")[:2])


def _peermem(node: ExaminedNode) -> str | None:
    loaded = node.get("gpudirect", "peermem")
    if loaded is None or not node.gpus:
        return None
    return "nvidia_peermem" if loaded else "no nvidia_peermem"


SAME_SOFTWARE = "Make the environments the same: one image, or one shared home."
SAME_KIND = "Use nodes of one kind"
DIFFERENCES = (
    Difference("D-DIFF-TORCH", "error", "torch {}", _training("torch"),
               "Different versions of torch may be incompatible.", SAME_SOFTWARE),
    Difference("D-DIFF-CUDA", "error", "CUDA {} in torch", _training("cuda"),
               "Builds for different CUDA versions may load different NCCL versions or need different drivers.",
               SAME_SOFTWARE),
    Difference("D-DIFF-NCCL", "error", "NCCL {}", _training("nccl"),
               "NCCL refuses ranks of another version.", SAME_SOFTWARE),
    Difference("D-DIFF-PYTHON", "warning", "Python {}", _minor,
               "Objects that one version pickles may not load in another.", SAME_SOFTWARE),
    Difference("D-DIFF-DRIVER", "warning", "driver {}", lambda node: node.driver,
               "Different drivers have made NCCL fail.", "Install the same driver on all nodes."),
    Difference("D-DIFF-GPUS", "warning", "GPUs: {}", lambda node: node.models,
               "Each step waits for the slowest GPU, and torchrun starts the same number of ranks on every node.",
               f"{SAME_KIND}, or set --nproc-per-node."),
    Difference("D-DIFF-IB", "warning", "active InfiniBand ports: {}", lambda node: node.ports,
               "A collective is only as fast as the node with the fewest or slowest ports.",
               "Check the other ports with ibstat."),
    Difference("D-DIFF-PEERMEM", "warning", "{}", _peermem,
               "A connection with GPUDirect RDMA at only one end is slow, or fails.",
               "Run modprobe nvidia_peermem on the nodes without it."),
    Difference("D-DIFF-MTU", "warning", "MTU {}", _mtu,
               "Packets that are larger than the receiver's MTU are lost, and connections hang.",
               "Set the same MTU on all nodes (ip link set dev NAME mtu N)."),
    Difference("D-DIFF-NCCL-ENV", "warning", "NCCL settings: {}", _nccl,
               "Ranks with different settings may hang or fail.",
               "Set them the same everywhere, best with --nccl at the launch."),
    Difference("D-DIFF-ARCH", "warning", "{} processors", lambda node: node.get("machine"),
               "An environment for one architecture does not run on another.", f"{SAME_KIND}."),
)  # fmt: skip


def check_differences(nodes: Sequence[ExaminedNode]) -> list[Finding]:
    """Report what differs between nodes. Unknown values are not compared."""
    if len(nodes) < 2:
        return []
    findings = []
    for row in DIFFERENCES:
        text = differs(row.phrase, {node.name: row.value_of(node) for node in nodes})
        if text:
            findings.append(
                Finding(
                    id=row.id,
                    severity=row.severity,
                    value=text,
                    text=f"{text}. {row.why}",
                    remedy=row.remedy,
                )
            )
    return [*findings, *_clocks(nodes), *_machines(nodes)]


def differs(phrase: str, values: Mapping[str, object]) -> str:
    """Return the nodes with each known value, the most frequent last; "" if there are not two values."""
    groups: dict[str, list[str]] = {}
    for name, value in values.items():
        if value is not None:
            groups.setdefault(str(value), []).append(name)
    if len(groups) < 2:
        return ""
    *few, (usual, others) = sorted(groups.items(), key=lambda pair: len(pair[1]))
    phrases = [
        f"{_who(names)} {agreeing(names, 'has', 'have')} {phrase.format(value)}" for value, names in few
    ]
    if len(others) > 1:
        return f"{', '.join(phrases)}, {len(others)} others have {usual}"
    return f"{', '.join(phrases)}, {others[0]} has {usual}"


def _who(names: Sequence[str]) -> str:
    if len(names) > MOST_NAMED:
        return listed(names, MOST_NAMED)
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _clocks(nodes: Sequence[ExaminedNode]) -> list[Finding]:
    """Report the two clocks that differ most for certain, by ahead_s and doubt_s."""
    clocks = [(node.ahead_s, node.doubt_s, node.name) for node in nodes if node.ahead_s is not None]
    if len(clocks) < 2:
        return []
    low, low_doubt, late = min(clocks, key=lambda clock: clock[0] + clock[1])
    high, high_doubt, early = max(clocks, key=lambda clock: clock[0] - clock[1])
    if high - low - low_doubt - high_doubt <= CLOCK_S:
        return []
    value = f"{high - low:.1f} s"
    text = f"The clock of {early} is {value} ahead of that of {late}: the order of their events is unknown."
    remedy = "Start chrony or systemd-timesyncd on all nodes."
    return [Finding(id="D-DIFF-CLOCK", severity="warning", value=value, text=text, remedy=remedy)]


def _machines(nodes: Sequence[ExaminedNode]) -> list[Finding]:
    groups: dict[str, list[str]] = {}
    for node in nodes:
        if node.get("boot"):
            groups.setdefault(node.get("boot"), []).append(node.name)
    return [
        Finding(
            id="D-SAME-MACHINE",
            severity="note",
            value=f"{len(names)} nodes",
            text=f"{_who(names)} are one machine: they share its cores, memory and GPUs.",
            remedy="Name each machine once, unless you are trying things out.",
        )
        for names in groups.values()
        if len(names) > 1
    ]
