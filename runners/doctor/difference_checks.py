"""Differences between the nodes of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...presets.finding import Finding, Severity
from ..run.formatting import agreeing, listed
from .node_checks import CLOCK_S, ExaminedNode

Value = object
Row = tuple[str, Severity, str, Callable[[ExaminedNode], Value], str, str]
MOST_NAMED = 6


def _training(name: str) -> Callable[[ExaminedNode], Value]:
    return lambda node: node.get("training", name)


def _nccl(node: ExaminedNode) -> str | None:
    """Return NCCL's settings. The environment overrides NCCL's files."""
    if node.get("env") is None:
        return None
    settings = {
        name: value for name, value in node.settings.items() if name.startswith(("NCCL_", "TORCH_NCCL_"))
    }
    return " ".join(f"{name}={value}" for name, value in sorted(settings.items())) or "none"


def _mtu(node: ExaminedNode) -> Value:
    face = node.interface
    return None if face is None else face["mtu"]


def _minor(node: ExaminedNode) -> str | None:
    version = node.get("training", "python")
    return None if version is None else ".".join(str(version).split(".")[:2])


def _loaded(node: ExaminedNode) -> str | None:
    loaded = node.get("gpudirect", "peermem")
    if loaded is None or not node.gpus:
        return None
    return "loaded" if loaded else "not loaded"


SAME = "Make the environments the same: one image, or one shared home."
LIKE = "Use like nodes."
ROWS: tuple[Row, ...] = (
    ("D-DIFF-TORCH", "error", "torch {}", _training("torch"), "Different versions of torch may be incompatible.", SAME),
    ("D-DIFF-CUDA", "error", "CUDA {} in torch", _training("cuda"), "They are built for different CUDA.", SAME),
    ("D-DIFF-NCCL", "error", "NCCL {}", _training("nccl"), "NCCL refuses ranks of another version.", SAME),
    ("D-DIFF-PYTHON", "warning", "Python {}", _minor, "Pickled objects of one may not load in another.", SAME),
    ("D-DIFF-DRIVER", "warning", "driver {}", lambda node: node.driver, "Different drivers have made NCCL fail.",
     "Install the same driver on all."),
    ("D-DIFF-GPUS", "warning", "GPUs: {}", lambda node: node.models,
     "Each step waits for the slowest, and torchrun starts as many on each.",
     f"{LIKE[:-1]}, or give --nproc-per-node."),
    ("D-DIFF-IB", "warning", "active InfiniBand ports: {}", lambda node: node.ports,
     "A ring is as wide as its narrowest node.",
     "Check the ports of the others (ibstat)."),
    ("D-DIFF-PEERMEM", "warning", "nvidia_peermem {}", _loaded, "A link with GPUDirect at one end is slow, or fails.",
     "modprobe nvidia_peermem on the others."),
    ("D-DIFF-MTU", "warning", "MTU {}", _mtu, "Packets too large for the other side are lost, and connections hang.",
     "Set the same MTU (ip link set dev NAME mtu N)."),
    ("D-DIFF-NCCL-ENV", "warning", "NCCL settings: {}", _nccl, "Ranks that choose differently hang or fail.",
     "Set them the same everywhere, best with --nccl at the launch."),
    ("D-DIFF-ARCH", "warning", "{} processors", lambda node: node.get("machine"), "One environment seldom serves both.",
     LIKE),
)  # fmt: skip
"""ID, severity, format of a value, the value, why it matters, remedy."""


def check_differences(nodes: Sequence[ExaminedNode]) -> list[Finding]:
    """Report every difference. Unknown values do not count."""
    if len(nodes) < 2:
        return []
    findings = []
    for id_, severity, phrase, of, why, remedy in ROWS:
        text = differs(phrase, {node.name: of(node) for node in nodes})
        if text:
            findings.append(
                Finding(
                    id=id_, severity=severity, where="", value=text, text=f"{text}. {why}", remedy=remedy
                )
            )
    return [*findings, *_clocks(nodes), *_machines(nodes)]


def differs(phrase: str, values: Mapping[str, Value]) -> str:
    """Return the nodes with each value, the most frequent last; "" if all values are equal or unknown."""
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
        return f"{', '.join(phrases)}, the other {len(others)} have {usual}"
    return f"{', '.join(phrases)}, {others[0]} has {usual}"


def _who(names: Sequence[str]) -> str:
    if len(names) > MOST_NAMED:
        return listed(names, MOST_NAMED)
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _clocks(nodes: Sequence[ExaminedNode]) -> list[Finding]:
    """Compare the nodes' clocks with each other. A difference from this machine's clock does not matter here."""
    clocks = [(node.ahead_s, node.doubt_s, node.name) for node in nodes if node.ahead_s is not None]
    if len(clocks) < 2:
        return []
    (low, doubt, late), (high, other, early) = min(clocks), max(clocks)
    if high - low - doubt - other <= CLOCK_S:
        return []
    value = f"{high - low:.1f} s"
    text = f"The clock of {early} is {value} ahead of that of {late}: the order of events is not known."
    remedy = "Start chrony or systemd-timesyncd on all."
    return [Finding(id="D-DIFF-CLOCK", severity="warning", where="", value=value, text=text, remedy=remedy)]


def _machines(nodes: Sequence[ExaminedNode]) -> list[Finding]:
    groups: dict[str, list[str]] = {}
    for node in nodes:
        if node.get("boot"):
            groups.setdefault(node.get("boot"), []).append(node.name)
    return [
        Finding(
            id="D-SAME-MACHINE",
            severity="note",
            where="",
            value=f"{len(names)} nodes",
            text=f"{_who(names)} are one machine: they share its cores, memory and GPUs.",
            remedy="Name each machine once, unless you are trying things out.",
        )
        for names in groups.values()
        if len(names) > 1
    ]
