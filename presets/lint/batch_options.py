"""Rules for the values of #SBATCH options: units, contradictions, repetitions (L67, L74)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ..finding import Finding, Severity
from .lint_rules import case
from .slurm import Batch, Slurm
from .surroundings import Surroundings

MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
"""Options that exclude each other."""
HOURS = frozenset({"12", "24", "36", "48", "72", "96", "120", "168"})
"""Numbers of minutes that are probably meant as hours."""


def check_options(batch: Batch, text: str, around: Surroundings) -> Iterator[Finding]:
    """Check the values of the #SBATCH lines that sbatch reads."""
    yield from _tasks(batch.slurm, around)
    yield from _gpus(batch.slurm, around)
    yield from _memory(batch.slurm, around)
    yield from _time(batch.slurm, around)
    yield from _twice(batch, around)
    yield from _logs(batch.slurm, text, around)


def _at(slurm: Slurm, option: str, around: Surroundings) -> str:
    return around.at(slurm.options[option].line)


def _tasks(slurm: Slurm, around: Surroundings) -> Iterator[Finding]:
    """Report numbers of tasks that contradict each other, and GPUs per task without tasks."""
    tasks, each, nodes = slurm.number("ntasks"), slurm.number("ntasks-per-node"), slurm.number("nodes")
    if tasks and each and (tasks < each or (nodes and tasks != nodes * each)):
        facts = {
            "tasks": tasks,
            "each": each,
            "nodes": "one node" if tasks <= each else f"{nodes} nodes",
            "total": each * (nodes or 1),
        }
        name = "tasks" if tasks < each else "total"
        severity: Severity = "error" if tasks < each and slurm.gpus != 1 else "warning"
        value = f"--ntasks={tasks} --ntasks-per-node={each}"
        yield case("L74", name, _at(slurm, "ntasks", around), facts, value=value, severity=severity)
    counted = ("ntasks", "ntasks-per-node", "gpus")
    if slurm.has("gpus-per-task") and not any(map(slurm.has, counted)):
        where = _at(slurm, "gpus-per-task", around)
        yield case("L67", "per_task", where, value="--gpus-per-task")


def _gpus(slurm: Slurm, around: Surroundings) -> Iterator[Finding]:
    """Report numbers of GPUs that contradict each other."""
    counts = {
        option: Slurm({option: slurm.options[option]}).gpus
        for option in ("gpus-per-node", "gres")
        if slurm.has(option)
    }
    nodes, total = slurm.number("nodes"), re.sub(r"^[A-Za-z][\w.-]*:", "", slurm.text("gpus"))
    if total.isdecimal() and nodes and int(total) % nodes == 0:
        counts["gpus"] = int(total) // nodes
    known = {option: count for option, count in counts.items() if count}
    if len(set(known.values())) > 1:
        (first, one), (second, two) = list(known.items())[:2]
        facts = {
            "first": f"--{first}={slurm.text(first)}",
            "one": one,
            "second": f"--{second}={slurm.text(second)}",
        }
        facts["two"] = two
        yield case(
            "L74",
            "gpus",
            _at(slurm, first, around),
            facts,
            value=f"--{first} --{second}",
            severity="warning",
        )


def _memory(slurm: Slurm, around: Surroundings) -> Iterator[Finding]:
    """Report memory in the wrong unit, and options that exclude each other."""
    given = [option for option in MEMORY if slurm.has(option)]
    if len(given) > 1:
        facts = {"first": given[0], "second": given[1]}
        yield case(
            "L67", "exclusive", _at(slurm, given[1], around), facts, value=f"--{given[0]} --{given[1]}"
        )
    for option in given:
        value = slurm.text(option)
        if value.isdecimal() and 0 < int(value) < 1024:
            facts = {"option": f"--{option}={value}", "value": value}
            yield case(
                "L67",
                "memory",
                _at(slurm, option, around),
                facts,
                value=f"--{option}={value}",
                severity="warning",
            )


def _time(slurm: Slurm, around: Surroundings) -> Iterator[Finding]:
    """Report a time limit in minutes that is probably meant in hours."""
    value = slurm.text("time")
    minutes, _, seconds = value.partition(":")
    short = re.fullmatch(r"00?:00?:([0-5]\d)|0{1,2}:([0-5]\d)", value)
    if short is not None and value.strip("0:"):
        facts = {"value": value, "seconds": int(short[1] or short[2])}
        yield case(
            "L67", "short", _at(slurm, "time", around), facts, value=f"--time={value}", severity="warning"
        )
    is_short = re.fullmatch(r"\d{1,3}:00", value) is not None or value in HOURS
    if is_short and seconds in ("", "00"):
        facts = {"value": value, "minutes": minutes}
        yield case(
            "L67", "time", _at(slurm, "time", around), facts, value=f"--time={value}", severity="note"
        )


def _twice(batch: Batch, around: Surroundings) -> Iterator[Finding]:
    """Report an option with two values, of which the last one counts."""
    early = [one for one in batch.directives if one.name and one.known and not one.late]
    counts = Counter(one.name for one in early)
    for name, count in counts.items():
        values = [one.value for one in early if one.name == name]
        if (
            count > 1
            and name != "mail-type"
            and len({value.text for value in values}) > 1
            and batch.components == 1
        ):
            facts = {"option": f"--{name}", "first": values[0].text, "last": values[-1].text}
            yield case(
                "L67", "twice", around.at(values[0].line), facts, value=f"--{name}", severity="warning"
            )


def _logs(slurm: Slurm, text: str, around: Surroundings) -> Iterator[Finding]:
    """Report a log in a directory that cannot exist yet when Slurm opens it."""
    for option in ("output", "error"):
        word = slurm.options.get(option)
        folder = word.text.rpartition("/")[0] if word else ""
        if word is None or not folder:
            continue
        made = re.search(rf"\bmkdir\b[^\n]*{re.escape(folder.removeprefix('./'))}(?![\w-])", text)
        name = "log" if "%" in folder else "made"
        if name == "log" or made:
            facts = {"folder": folder, "option": f"--{option}"}
            severity: Severity = "error" if name == "log" else "note"
            yield case(
                "L67", name, around.at(word.line), facts, value=f"--{option} {word.text}", severity=severity
            )
            return
