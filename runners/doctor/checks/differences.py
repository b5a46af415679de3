"""What nodes of one run must have in common, and do not: one finding a difference, saying who has what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ....presets.finding import Finding, Severity
from ..look import GIB, Look

Value = object
Row = tuple[str, Severity, str, Callable[[Look], Value], str, str]
MOST_NAMED = 6
CLOCK_S = 1.0


def _training(name: str) -> Callable[[Look], Value]:
    return lambda look: look.get("training", name)


def _nccl(look: Look) -> str | None:
    """NCCL's settings, of the environment before those of its files."""
    env = look.get("env")
    if env is None:
        return None
    files: dict[str, str] = {}
    for said in (look.get("nccl_conf") or {}).values():
        files |= said
    both = {
        **files,
        **{name: value for name, value in env.items() if name.startswith(("NCCL_", "TORCH_NCCL_"))},
    }
    return " ".join(f"{name}={value}" for name, value in sorted(both.items())) or "none"


def _mtu(look: Look) -> Value:
    face = look.interface
    return None if face is None else face["mtu"]


def _minor(look: Look) -> str | None:
    said = look.get("training", "python")
    return None if said is None else ".".join(str(said).split(".")[:2])


def _memory(look: Look) -> str | None:
    """In steps of 8 GiB: firmware takes a little more or less."""
    found = look.get("memory")
    return None if found is None else f"{8 * round(found / GIB / 8)} GiB"


def _loaded(look: Look) -> str | None:
    found = look.get("gpudirect", "peermem")
    return None if found is None or not look.gpus else "loaded" if found else "not loaded"


SAME = "Make the environments the same: one image, or one shared home."
LIKE = "Use like nodes."
ROWS: tuple[Row, ...] = (
    ("D-DIFF-TORCH", "error", "torch {}", _training("torch"), "Different torch may not understand each other.", SAME),
    ("D-DIFF-CUDA", "error", "CUDA {} in torch", _training("cuda"), "They are built for different CUDA.", SAME),
    ("D-DIFF-NCCL", "error", "NCCL {}", _training("nccl"), "NCCL refuses ranks of another version.", SAME),
    ("D-DIFF-PYTHON", "warning", "Python {}", _minor, "Pickled objects of one may not load in another.", SAME),
    ("D-DIFF-DRIVER", "warning", "driver {}", lambda look: look.driver, "Different drivers have made NCCL fail.",
     "Install the same driver on all."),
    ("D-DIFF-GPUS", "warning", "GPUs: {}", lambda look: look.models,
     "Each step waits for the slowest, and torchrun starts as many on each.",
     f"{LIKE[:-1]}, or give --nproc-per-node."),
    ("D-DIFF-IB", "warning", "active InfiniBand ports: {}", lambda look: look.ports,
     "A ring is as wide as its narrowest node.",
     "Look at the ports of the others (ibstat)."),
    ("D-DIFF-PEERMEM", "warning", "nvidia_peermem {}", _loaded, "A link with GPUDirect at one end is slow, or fails.",
     "modprobe nvidia_peermem on the others."),
    ("D-DIFF-MTU", "warning", "MTU {}", _mtu, "Packets too large for the other side are lost, and connections hang.",
     "Set the same MTU (ip link set dev NAME mtu N)."),
    ("D-DIFF-NCCL-ENV", "warning", "NCCL settings: {}", _nccl, "Ranks that choose differently hang or fail.",
     "Set them the same everywhere, best with --nccl at the launch."),
    ("D-DIFF-ARCH", "warning", "{} processors", lambda look: look.get("machine"), "One environment seldom serves both.",
     LIKE),
    ("D-DIFF-CORES", "note", "{} cores", lambda look: look.get("cores"), "Data loading is slower on some.", ""),
    ("D-DIFF-MEMORY", "note", "{} of memory", _memory, "What fits on one may not fit on another.", ""),
    ("D-DIFF-KERNEL", "note", "kernel {}", lambda look: look.get("kernel"), "Mostly harmless.", ""),
)  # fmt: skip
"""Id, severity, how a value is said, the value, why it matters, what to do."""


def check(looks: Sequence[Look]) -> list[Finding]:
    """Every difference. What is unknown of a node differs from nothing."""
    if len(looks) < 2:
        return []
    found = []
    for id_, severity, saying, of, why, remedy in ROWS:
        told = differs(saying, {look.name: of(look) for look in looks})
        if told:
            found.append(
                Finding(
                    id=id_, severity=severity, where="", value=told, text=f"{told}. {why}", remedy=remedy
                )
            )
    return [*found, *_clocks(looks), *_machines(looks)]


def differs(saying: str, values: Mapping[str, Value]) -> str:
    """Who has what, with the most frequent last; "" where all that is known is the same."""
    groups: dict[str, list[str]] = {}
    for name, value in values.items():
        if value is not None:
            groups.setdefault(str(value), []).append(name)
    if len(groups) < 2:
        return ""
    *few, (usual, others) = sorted(groups.items(), key=lambda one: len(one[1]))
    told = [f"{_who(names)} {_has(names)} {saying.format(value)}" for value, names in few]
    if len(others) > 1:
        return f"{', '.join(told)}, the other {len(others)} have {usual}"
    return f"{', '.join(told)}, {others[0]} has {usual}"


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _who(names: Sequence[str]) -> str:
    if len(names) > MOST_NAMED:
        return f"{', '.join(names[:MOST_NAMED])} and {len(names) - MOST_NAMED} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _clocks(looks: Sequence[Look]) -> list[Finding]:
    """Between the nodes; how far they are from this machine's clock is another matter."""
    known = [(look.ahead_s, look.doubt_s, look.name) for look in looks if look.ahead_s is not None]
    if len(known) < 2:
        return []
    (low, doubt, late), (high, other, early) = min(known), max(known)
    if high - low - doubt - other <= CLOCK_S:
        return []
    value = f"{high - low:.1f} s"
    text = f"The clock of {early} is {value} ahead of that of {late}: what happened first cannot be told."
    remedy = "Start chrony or systemd-timesyncd on all."
    return [Finding(id="D-DIFF-CLOCK", severity="warning", where="", value=value, text=text, remedy=remedy)]


def _machines(looks: Sequence[Look]) -> list[Finding]:
    groups: dict[str, list[str]] = {}
    for look in looks:
        if look.get("boot"):
            groups.setdefault(look.get("boot"), []).append(look.name)
    return [
        Finding(
            id="D-SAME-MACHINE", severity="note", where="", value=f"{len(names)} nodes",
            text=f"{_who(names)} are one machine: they share its cores, memory and GPUs.",
            remedy="Name each machine once, unless you are trying things out.",
        )
        for names in groups.values()
        if len(names) > 1
    ]  # fmt: skip
