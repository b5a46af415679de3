"""Environment variables: names that nobody reads, values that nobody takes, and what slows training down."""

from __future__ import annotations

import difflib
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from .. import nccl, secrets
from ..finding import Finding
from .nodes import whole
from .rules import found

FOREIGN = (
    *("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_", "NCCL_SHARP_", "NCCL_UCX_", "NCCL_PLUGIN_", "NCCL_SHIMNET_"),
    *("NCCL_TUNER_CONFIG", "NCCL_HOME", "NCCL_ROOT", "NCCL_LIB", "NCCL_INCLUDE", "NCCL_VERSION"),
)
"""Plugins' own variables, and those of builds and images."""
OLD_NAMES = ("NCCL_BLOCKING_WAIT", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING")
"""torch still reads them, under TORCH_ in front since 2.2."""
SLOW: Mapping[str, tuple[str, str]] = {
    "CUDA_LAUNCH_BLOCKING": ("1", "makes the CPU wait for every kernel"),
    "NCCL_P2P_DISABLE": ("1", "keeps GPUs of a node from NVLink and PCIe peer access"),
    "NCCL_SHM_DISABLE": ("1", "sends what could go through shared memory over the network"),
    "NCCL_IB_DISABLE": ("1", "sends traffic between nodes over TCP instead of InfiniBand or RoCE"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "adds a collective that checks each collective"),
}
PLACEHOLDER = re.compile(
    r"|<.*>|\*+|x{3,}|\.{2,}|…|your.*|change.?me|replace.?me|todo|none|null|dummy|true|false|\d{1,7}|[/~.].*",
    re.I,
)
"""What stands where a secret is still to be written, and what is none: a short number, the path of a file."""
SOCKETS = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
MOST_SOCKETS = 64
MOST = 500
"""Variables of one place that are looked at."""


def check(name: str, value: str, where: str, nnodes: int | None = None) -> Iterator[Finding]:
    """What is wrong with one variable. A value with a `$` in it is not known; `nnodes` None: nor are the nodes."""
    known = "$" not in value and "`" not in value
    shown = value if where.endswith(name) else f"{name}={value}"
    if re.fullmatch(r"(TORCH_)?NCCL_TIMEOUT\w*", name):
        text = f"Neither NCCL nor torch reads {name}: collectives keep their own timeout (10 minutes)."
        yield found("L1", where, text, value=shown)
    elif nccl.known(name) or _misspelt(name):
        for one in _nccl(name, value, where, known):
            yield replace(one, value=shown)
    bad, what = SLOW.get(name, ("", ""))
    if bad and value.upper() == bad and not (name == "NCCL_IB_DISABLE" and nnodes == 1):
        yield found("L40", where, f"{name}={value} {what}.", value=shown)
    if name == "NCCL_SOCKET_IFNAME" and value.lstrip("=") == "lo" and (nnodes or 1) > 1:
        text = "NCCL is told to use the loopback interface alone, which reaches no other node."
        yield found(
            "L38", where, text, value=shown, remedy="Name the interface between the nodes, or leave it out."
        )


def check_all(
    env: Mapping[str, str], where: Callable[[str], str], nnodes: int | None = None
) -> Iterator[Finding]:
    """All of `env`, and what two of them are together; `where` says where a variable stands."""
    for name, value in itertools.islice(env.items(), MOST):
        yield from check(name, value, where(name), nnodes)
    counts = [whole(env.get(name, "")) or 0 for name in SOCKETS]
    if counts[0] * counts[1] > MOST_SOCKETS:
        text = f"{' × '.join(SOCKETS)} is {counts[0] * counts[1]}, and NCCL takes {MOST_SOCKETS} at most."
        remedy = "Lower one of the two, as in 4 × 4."
        yield found("L16", where(SOCKETS[0]), text, value=str(counts[0]), remedy=remedy)


def in_plain_text(name: str, value: str, where: str) -> Iterator[Finding]:
    """A secret whose value stands in a file."""
    open_value = value.strip("'\"")
    if not secrets.is_secret(name) or "$" in value or PLACEHOLDER.fullmatch(open_value):
        return
    text = f"The value of {name} stands here in plain text, for everybody who reads the file."
    yield found(
        "L36", where, text, value=secrets.MASK if where.endswith(name) else f"{name}={secrets.MASK}"
    )


def _nccl(name: str, value: str, where: str, known: bool) -> Iterator[Finding]:
    if name in OLD_NAMES:
        text = f"{name} is the old name of TORCH_{name}, which newer torch warns about."
        yield found("L15", where, text, severity="note", remedy=f"Write TORCH_{name}.")
        return
    fact = nccl.catalogue().get(name)
    if fact is None:
        if not name.startswith(FOREIGN):
            near = _nearest(name)
            remedy = f"Did you mean {near}?" if near else None
            text = f"Neither NCCL nor torch is known to read {name}: it does nothing."
            yield found("L15", where, text, remedy=remedy)
        return
    if fact.until:
        yield found("L15", where, f"{name} is no longer read: NCCL {fact.until} was the last that did.")
        return
    problem = nccl.check(name, value) if known else None
    if problem:
        yield found("L16", where, problem[:1].upper() + problem[1:])
    elif known:
        yield from _loose(fact, value, where)


def _loose(fact: nccl.Variable, value: str, where: str) -> Iterator[Finding]:
    """Forms that are taken, and mean something other than they look like."""
    if fact.kind == "level" and value.isdecimal():
        text = f"{fact.name}={value} is the number that older NCCL used for a level."
        remedy = f"Write one of {', '.join(fact.values)}."
        yield found("L9", where, text, remedy=remedy)
    if fact.name == "NCCL_SOCKET_IFNAME" and not value.startswith(("=", "^")) and value[-1:].isdigit():
        first = value.split(",")[0]
        text = f"{first} is the start of a name, which {first}0 and {first}1 have too."
        remedy = f"Write ={value} for exactly {'that' if first == value else 'those'}; ^ in front excludes."
        yield found("L9", where, text, remedy=remedy)


def _misspelt(name: str) -> bool:
    """Whether a name outside of the families is one of theirs but for a letter or two."""
    parts = name.upper().split("_")
    first = parts[parts[0] == "TORCH"] if parts[1:] else ""
    if not 3 <= len(first) <= 5 or _alike(first, "NCCL") < 0.7 or first == "NCCL" == name[:4]:
        return False
    near = _nearest(name)
    return bool(near) and _alike(name.upper(), near) >= 0.9


def _alike(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


@functools.lru_cache(maxsize=1000)
def _nearest(name: str) -> str:
    return next(iter(difflib.get_close_matches(name.upper()[:60], nccl.catalogue(), n=1, cutoff=0.75)), "")
