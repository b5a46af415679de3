"""The optimizer's table → candidates with their price. Pure.

SkyPilot returns nothing but this text (sky/optimizer.py, release 0.14). A line that is not understood whole is left
out, and a price that is not a number is None: nothing is better than a wrong one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..logs.clean import clean_lines

_COLUMNS = ("INFRA", "INSTANCE", "vCPUs", "Mem(GB)", "GPUS", "COST ($)", "CHOSEN")
_INFRA = re.compile(r"(?P<cloud>[^()]+?)(?: \((?P<place>[^()]*)\))?")


@dataclass(frozen=True, slots=True)
class Candidate:
    """Nodes that SkyPilot would take."""

    infra: str
    """For `--on`: "slurm/lab", "aws/us-east-1"."""
    instance: str
    """The cloud's name of the machine; "" where it has none."""
    vcpus: str
    memory_gb: str
    gpus: str
    """Of one node: "H100:8"; "" for none."""
    price_per_hour: float | None
    """US dollars for all nodes; None where SkyPilot names no price."""
    chosen: bool
    """What SkyPilot would take first."""


def parse(text: str) -> list[Candidate]:
    """The candidates in what the optimizer printed, as it orders them."""
    found: list[Candidate] = []
    starts: list[int] = []
    for line in clean_lines(text.encode()):
        if all(column in line for column in _COLUMNS):
            starts = [line.index(column) for column in _COLUMNS]
        elif starts and line.strip() and not set(line.strip()) <= {"-"}:
            one = _row(line, starts)
            if one is not None:
                found.append(one)
    return found


def _row(line: str, starts: list[int]) -> Candidate | None:
    ends = [*starts[1:], len(line)]
    cells = [line[start:end] for start, end in zip(starts, ends, strict=True)]
    # A cell that does not end in blanks runs into the next one: then the columns are not where they seem.
    if any(cell and not cell.endswith(" ") for cell in cells[:-1]):
        return None
    infra, instance, vcpus, memory, gpus, cost, chosen = (cell.strip() for cell in cells)
    place = _INFRA.fullmatch(infra)
    if place is None:
        return None
    cloud = place["cloud"].lower().replace("kubernetes", "k8s")
    names = cloud if place["place"] is None else f"{cloud}/{place['place'].replace(' ', '')}"
    return Candidate(
        names, _known(instance), _known(vcpus), _known(memory), _known(gpus), price(cost), bool(chosen)
    )


def _known(cell: str) -> str:
    return "" if cell in ("-", "None") else cell


def price(cell: str) -> float | None:
    """Dollars an hour; None for what is no number, and for 0: SkyPilot's way to say that it knows no price."""
    if not re.fullmatch(r"\d+\.\d+", cell):
        return None
    return float(cell) or None


def elsewhere(found: list[Candidate], tried: str) -> str:
    """What to try where `tried` had nothing, as the rest of a sentence; "" when nothing else is known."""
    others = [one for one in found if not one.infra.startswith(tried.split("/")[0].lower() or "*")]
    if not others:
        return ""
    one = others[0]
    what = " ".join(part for part in (one.gpus, one.instance) if part) or f"{one.vcpus} CPUs"
    cost = "" if one.price_per_hour is None else f", ${one.price_per_hour:.2f} an hour"
    return f"; --on {one.infra} has them ({what}{cost})"
