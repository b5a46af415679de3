"""Variables of the plan that NCCL has not read: misspelt, or set where its processes do not see them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping

from ....presets.nccl import catalogue
from ....presets.plan import Plan
from ...model import Finding
from ..facts import Facts

READ_AT_INIT = frozenset({"NCCL_SOCKET_IFNAME", "NCCL_ALGO", "NCCL_PROTO"})
"""What every NCCL reads while it makes its first communicator of several ranks, and says that it has."""
SILENT = ("NCCL_DEBUG", "NCCL_RAS", "NCCL_SET_THREAD_NAME", "NCCL_CONF_FILE", "NCCL_NO_CACHE")
"""Beginnings of those of which it never says so."""


def unread(facts: Iterable[Facts], plan: Plan | None, whole: bool) -> Iterator[Finding]:
    """`whole`: every node has completed a communicator. Silent where NCCL names none of the variables it reads."""
    given = list(facts)
    if plan is None or not whole:
        return
    read = {name: value for one in given for node in one.nodes for name, value in node.env.items()}
    if not read or not all(node.env for one in given for node in one.nodes):
        return  # without ENV in NCCL_DEBUG_SUBSYS it does not say
    asked = [name for name in sorted(plan.env) if name.startswith("NCCL_") and not name.startswith(SILENT)]
    for name in asked:
        if name not in read:
            yield _finding(name, plan.env[name], read)


def _finding(name: str, value: str, read: Mapping[str, str]) -> Finding:
    known = name in catalogue()
    near = "" if known else next(iter(difflib.get_close_matches(name, catalogue(), n=1, cutoff=0.85)), "")
    alarm = name in READ_AT_INIT or bool(near)
    why = (
        f"it looks like {near}" if near else "it is read only where it is needed"
        if known and not alarm else "it was set too late, or the processes do not see it"
        if known else "no NCCL is known to read it"
    )  # fmt: skip
    names = sorted(read)
    more = f" and {len(names) - 8} others" if len(names) > 8 else ""
    return Finding(
        f"expect-env:{name}",
        "warn" if alarm else "info",
        f"NCCL has not read {name}: {why}",
        "cause" if alarm else "hint",
        remedy=f"Write {near}." if near else "See `distui lint`, and set it in the preset or with --nccl.",
        evidence=(f"the plan sets {name}={value}", f"NCCL says that it read {', '.join(names[:8])}{more}"),
    )
