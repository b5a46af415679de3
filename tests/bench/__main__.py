"""`python -m tests.bench`: measure, print the table, and with --write keep it in docs/development/benchmarks.md.

A row is printed and kept as soon as it is measured. If a topic fails, its other rows and the other topics stay.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module

from . import document, machine
from .figures import Row, markdown, skipped
from .options import QUICK, Effort
from .place import NotReached

TOPICS = {
    "launch": "launching",
    "restart": "restarting",
    "slowdown": "slowing",
    "agent": "agents",
    "cockpit": "cockpits",
    "bytes": "painting",
    "before": "earlier",
    "help": "helping",
    "nccl": "switching",
    "relay": "relaying",
    "ssh": "sshing",
    "slow": "delaying",
    "lines": "log_lines",
    "detectors": "detecting",
    "cluster": "clustering",
    "many": "crowds",
    "journal": "journals",
    "search": "searching",
    "hostile": "hostile",
    "patterns": "patterns",
    "more": "more",
}
"""Topic → module with `rows(effort)`, in the order of the table."""


def options(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    add = parser.add_argument
    add("topics", nargs="*", metavar="TOPIC", help=f"of {', '.join(TOPICS)} (default: all)")
    add("--quick", action="store_true", help="few repetitions: shows that it works, no numbers to quote")
    add("--write", action="store_true", help="also write docs/development/benchmarks.md")
    add("--before", metavar="COMMIT", help="compare the cockpit with that of an earlier commit")
    add(
        "--no-nvitop",
        dest="nvitop",
        action="store_false",
        help="do not install nvitop into a throw-away environment to compare with it",
    )
    for name in (
        "launches",
        "restarts",
        "pairs",
        "steps",
        "blocks",
        "toggles",
        "nodes",
        "trips",
        "keys",
        "events",
        "lines",
    ):
        add(f"--{name}", type=int, metavar="N", help=f"(default: {getattr(Effort(), name)})")
    add(
        "--watch-s", type=float, metavar="S", help=f"seconds CPU is counted (default: {Effort().watch_s:g})"
    )
    found = parser.parse_args(argv)
    unknown = [topic for topic in found.topics if topic not in TOPICS]
    if unknown:
        parser.error(f"no topic {unknown[0]!r}: there are {', '.join(TOPICS)}")
    return found


def effort_of(found: argparse.Namespace) -> Effort:
    """What the options ask for."""
    base = QUICK if found.quick else Effort()
    names = {field.name for field in dataclasses.fields(Effort)}
    asked = {
        name: value for name, value in vars(found).items() if name in names and value not in (None, "")
    }
    return dataclasses.replace(base, **asked)


def measure(topic: str, effort: Effort) -> Iterator[Row]:
    """Yield the rows of a topic; after a failure one more with the reason."""
    began = time.monotonic()
    try:
        rows: Callable[[Effort], Iterable[Row]] = import_module(f".{TOPICS[topic]}", __package__).rows
        yield from rows(effort)
    except NotReached as error:
        yield skipped(topic, str(error), goal=0.0)
    except Exception as error:  # noqa: BLE001 - the other topics go on, and the row has the reason
        traceback.print_exc()
        yield skipped(topic, f"{type(error).__name__}: {error}", goal=0.0)
    sys.stderr.write(f"{topic}: {time.monotonic() - began:.0f} s\n")


def report(row: Row) -> None:
    """Print a row that was just measured."""
    why = "".join(f": {note}" for note in row.notes) if row.met == "not measured" else ""
    sys.stderr.write(
        f"  {row.what}: {row.ours} | {row.peer} | {row.shown} | {row.goal_text} {row.met}{why}\n"
    )
    sys.stderr.flush()


def main(argv: list[str]) -> int:
    """1 when a goal was missed or could not be measured, else 0."""
    found = options(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that every place is left clean
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what pip installs is compiled: so is a checkout, once
    before = f"before: {machine.state()}"
    command = " ".join(["python -m tests.bench", *argv])
    rows: list[Row] = []
    for topic in TOPICS:
        if topic not in (found.topics or TOPICS):
            continue
        for row in measure(topic, effort_of(found)):
            rows.append(row)
            report(row)
            if found.write:
                document.write(rows, command, f"{before}; not finished")
    state = f"{before}; after: {machine.state()}"
    sys.stdout.write(f"{machine.describe()}\n{state}\n\n{markdown(rows)}")
    if found.write:
        document.write(rows, command, state)
    return 1 if any(row.met in ("**no**", "not measured") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
