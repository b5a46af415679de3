"""The lint rules by ID (lint_rules.toml), and checks for keys, values and variables of several kinds of files."""

from __future__ import annotations

import functools
import itertools
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources

from .. import nccl, secrets
from ..finding import Finding, Severity
from ..sanitize import sentence
from ..spelling import nearest
from ..text_formats import MarkupNode, place, whole


@dataclass(frozen=True, slots=True)
class LintRule:
    id: str
    severities: tuple[Severity, ...]
    """The worst first. The others apply if less is known or less is lost."""
    repair: str
    """The general remedy, one sentence."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Case → the problem, with facts in braces."""
    repairs: Mapping[str, str] = field(default_factory=dict)
    """Case → its remedy, if it is not the general one."""


@functools.cache
def rules() -> Mapping[str, LintRule]:
    """Return every rule by its ID, in order."""
    text = resources.files(__package__).joinpath("lint_rules.toml").read_text("utf-8")
    return {
        id: LintRule(
            id,
            tuple(facts["severities"]),
            facts["repair"],
            facts.get("texts", {}),
            facts.get("repairs", {}),
        )
        for id, facts in tomllib.loads(text).items()
    }


def issue(
    id: str,
    where: str,
    text: str,
    *,
    value: str = "",
    remedy: str | None = None,
    near: str = "",
    severity: Severity | None = None,
) -> Finding:
    """Return a finding of the rule `id`. `remedy` and `severity` override the rule's own.

    `near`: the name that was probably meant, as the remedy, or "".
    """
    rule = rules()[id]
    worst = severity or rule.severities[0]
    if worst not in rule.severities:
        raise ValueError(f"{id} is never {worst}")
    if near:
        remedy = f"Did you mean {near}?"
    elif remedy is None:
        remedy = rule.repair
    return Finding(
        id=id,
        severity=worst,
        where=where,
        value=value,
        text=text,
        remedy=remedy,
    )


def case(
    id: str,
    name: str,
    where: str,
    facts: Mapping[str, object] | None = None,
    *,
    value: str = "",
    severity: Severity | None = None,
    near: str = "",
) -> Finding:
    """Return a finding of a case of the rule `id`, in whose sentences the facts are filled in."""
    rule, known = rules()[id], facts or {}
    remedy = rule.repairs.get(name, rule.repair).format(**known)
    text = rule.texts[name].format(**known)
    return issue(id, where, text, value=value, remedy=remedy, near=near, severity=severity)


def once(findings: Iterable[Finding]) -> list[Finding]:
    """Keep one finding per rule, place and value."""
    return list({(finding.id, finding.where, finding.value): finding for finding in findings}.values())


def choice(
    file: str, node: MarkupNode | None, path: str, allowed: Iterable[str], program: str
) -> Iterator[Finding]:
    """Check that a text is one of the allowed values. Case is ignored."""
    if node is None or node.value is None:
        return
    options = list(allowed)
    where = place(file, node, path)
    if node.value is False and "no" in (option.lower() for option in options):
        word = next(option for option in options if option.lower() == "no")
        text = f"Without quotes YAML reads {word} as false, which is no {path} of {program}."
        yield issue("L30", where, text, value=f"{path}: {word}", remedy=f"Write '{word}', in quotes.")
        return
    value = node.shown
    if value.lower() not in (option.lower() for option in options):
        text, remedy = f"{program} has no {path} {value}.", f"Write one of {', '.join(options)}."
        near = nearest(value, options)
        yield issue("L30", where, text, value=f"{path}: {value}", remedy=remedy, near=near)


def keys(
    file: str, node: MarkupNode, allowed: Iterable[str], program: str, *, refuses: bool
) -> Iterator[Finding]:
    """Report keys that a program does not have.

    If the program ignores unknown keys, only keys that look misspelt are reported: the others may be notes.
    """
    options = list(allowed)
    for key, part in node.mapping.items():
        near = nearest(key, options, 0.8)
        if key in options or not (near or refuses):
            continue
        text = f"{program} has no key {key}, and {'refuses the file' if refuses else 'does not read it'}."
        severity: Severity = "error" if near else "warning"  # a newer release may have it
        yield issue("L31", place(file, part, key), text, value=key, near=near, severity=severity)


LOCAL_ADDRESS = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[?::1\]?)(:\d+)?")
"""An address that is local to each node."""
LOCAL_INTERFACES = ("lo", "docker0", "virbr0")
DEFAULT_PORT = "29500"
OLD_NAMES = ("NCCL_BLOCKING_WAIT", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING")
"""torch still reads them. Since 2.2 their names begin with TORCH_."""
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
"""Values that are not secrets: placeholders, short numbers, and paths of files."""
SOCKETS = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
MOST_SOCKETS = 64
MOST = 500
"""Most variables per place to check."""


def check_variables(name: str, value: str, where: str, nnodes: int | None = None) -> Iterator[Finding]:
    """Check one variable. A value with a `$` is unknown. `nnodes`: number of nodes, or None if unknown."""
    shown = value if where.endswith(name) else f"{name}={value}"
    if re.fullmatch(r"(TORCH_)?NCCL_TIMEOUT\w*", name):
        text = f"Neither NCCL nor torch reads {name}: collectives keep their own timeout (10 minutes)."
        yield issue("L1", where, text, value=shown)
    elif nccl.covers(name) or nccl.misspelt(name):
        for finding in _nccl(name, value, where):
            yield replace(finding, value=shown)
    if name == "GLOO_SOCKET_IFNAME" and value.startswith(("^", "=")):
        text = f"Gloo takes names of interfaces, and {value[0]} is NCCL's syntax: it finds no address for {value}."
        yield issue(
            "L16", where, text, value=shown, remedy="Write the name of the interface, such as eth0."
        )
    if _is_slow(name, value, nnodes):
        yield issue("L40", where, f"{name}={value} {SLOW[name][1]}.", value=shown)
    is_local = (
        name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") and value.lstrip("=") in LOCAL_INTERFACES
    )
    if is_local and (nnodes or 1) > 1:
        program, interface = name.partition("_")[0], value.lstrip("=")
        text = f"{program} is set to use only the interface {interface}, which reaches no other node."
        yield issue(
            "L38", where, text, value=shown, remedy="Name the interface between the nodes, or leave it out."
        )


def _is_slow(name: str, value: str, nnodes: int | None) -> bool:
    if name == "NCCL_IB_DISABLE" and nnodes == 1:
        return False
    return name in SLOW and value.upper() == SLOW[name][0]


def check_all(
    env: Mapping[str, str], where: Callable[[str], str], nnodes: int | None = None
) -> Iterator[Finding]:
    """Check all of `env`, and combinations of two. `where` returns the place of a variable."""
    for name, value in itertools.islice(env.items(), MOST):
        yield from check_variables(name, value, where(name), nnodes)
    counts = [whole(env.get(name, "")) or 0 for name in SOCKETS]
    if counts[0] * counts[1] > MOST_SOCKETS:
        text = f"{' × '.join(SOCKETS)} is {counts[0] * counts[1]}, and NCCL takes {MOST_SOCKETS} at most."
        remedy = "Lower one of the two, as in 4 × 4."
        yield issue("L16", where(SOCKETS[0]), text, value=str(counts[0]), remedy=remedy)


def in_plain_text(name: str, value: str, where: str) -> Iterator[Finding]:
    """Report a secret in plain text."""
    open_value = value.strip("'\"")
    if not secrets.is_secret(name) or "$" in value or PLACEHOLDER.fullmatch(open_value):
        return
    text = f"The value of {name} is here in plain text, readable by everybody who can read the file."
    yield issue(
        "L36", where, text, value=secrets.MASK if where.endswith(name) else f"{name}={secrets.MASK}"
    )


def _nccl(name: str, value: str, where: str) -> Iterator[Finding]:
    if name in OLD_NAMES:
        text = f"{name} is the old name of TORCH_{name}; newer torch warns about the old one."
        yield issue("L15", where, text, severity="note", remedy=f"Write TORCH_{name}.")
        return
    text = nccl.warning_for(name)
    if text:
        severity: Severity = "error" if nccl.misspelt(name) else "warning"
        remedy = None if name in nccl.catalogue() else "Check its spelling: it is set as written."
        yield issue("L15", where, text, near=nccl.suggestion(name), severity=severity, remedy=remedy)
        return
    fact = nccl.catalogue().get(name)
    if fact is None:
        return
    literal = "$" not in value and "`" not in value
    problem = nccl.error_in(name, value) if literal else None
    if problem:
        yield issue("L16", where, sentence(problem[:1].upper() + problem[1:]))
    elif literal:
        yield from _loose(fact, value, where)


def _loose(fact: nccl.NcclVariable, value: str, where: str) -> Iterator[Finding]:
    """Report values that NCCL interprets in an unexpected way."""
    if fact.kind == "level" and value.isdecimal():
        text = f"{fact.name}={value} is the number that older NCCL used for a level."
        remedy = f"Write one of {', '.join(fact.values)}."
        yield issue("L9", where, text, remedy=remedy)
    if fact.name == "NCCL_SOCKET_IFNAME" and not value.startswith(("=", "^")) and value[-1:].isdigit():
        first = value.split(",")[0]
        text = f"{first} is the start of a name, which {first}0 and {first}1 have too."
        remedy = f"Write ={value} for exactly {'that' if first == value else 'those'}; ^ in front excludes."
        yield issue("L9", where, text, remedy=remedy)
