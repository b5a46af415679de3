"""Rules for the order of the launches in a text: what waits, what ends too early, what shares a port (L59, L60, L64)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations, islice

from ..finding import Finding
from .launch_sites import Launch
from .launcher_calls import ASSIGNMENT, ShellText
from .lint_rules import DEFAULT_PORT, case
from .shell import Command
from .surroundings import Surroundings

MOST_PAIRS = 200
LASTING = frozenset({"wait", "sleep", "tail", "while", "until", "read", "srun", "ssh", "fg", "kill"})
"""Commands that keep a script from its end, or that end what runs in the background."""
RAY_BLOCKS = re.compile(r"\bray start\b.*--block\b")
PORTS = ("master_port", "main_process_port")


def check_order(script: ShellText, launches: Sequence[Launch], around: Surroundings) -> Iterator[Finding]:
    """Check the order of the launches of a text."""
    yield from _one_after_another(launches)
    yield from _blocked(script, around)
    yield from _ends_early(script, launches, around)
    yield from _array_port(script, launches, around)
    yield from _same_port(launches)


def _one_after_another(launches: Sequence[Launch]) -> Iterator[Finding]:
    """Report parts of one job without `&`, and a part without the others."""
    parts = [launch for launch in launches if _is_waiting_part(launch)]
    for launch in parts:
        if launch.call.command.in_loop and launch.site.is_part:
            yield case("L59", "loop", launch.where, value=launch.call.program)
            return
        if len(launches) == 1 and launch.site.own is not None and launch.site.is_part:
            yield case("L59", "only", launch.where, {"program": launch.call.program})
            return
    for first, second in islice(combinations(parts, 2), MOST_PAIRS):
        if _place(first) != _place(second) and first.call.command.branch == second.call.command.branch:
            yield case("L59", "lines", first.where, {"line": second.call.line}, value=first.call.program)
            return


def _is_waiting_part(launch: Launch) -> bool:
    """Return True if a launch in the foreground is a part of a job on several nodes."""
    if launch.call.command.background or not launch.call.is_launcher:
        return False
    is_part = launch.site.is_part or _rank(launch) != ""
    return is_part and (launch.told_nodes() or 0) > 1 and not launch.is_deepspeed


def _place(launch: Launch) -> tuple[str, str]:
    own = launch.site.own
    host = own.text("nodelist") or own.text("relative") if own else ""
    if launch.site.remote:
        names = [word.text for word in launch.call.before]
        at = names.index(launch.site.remote) if launch.site.remote in names else 0
        host = " ".join(names[at + 1 :])
    return host, _rank(launch)


def _rank(launch: Launch) -> str:
    """Return the number of the node that a launch is given, if it is literal."""
    if launch.call.program == "torchrun":
        return launch.options.literal("node-rank")
    word = launch.flags.get("machine_rank")
    return word.text if word and word.literal else launch.config_text("machine_rank")


def _blocked(script: ShellText, around: Surroundings) -> Iterator[Finding]:
    """Report commands that wait for the end of `ray start --block`."""
    for at, command in enumerate(script.commands):
        is_blocking = not command.background and RAY_BLOCKS.search(_text(command)) is not None
        if is_blocking and any(_follows(later, command) for later in script.commands[at + 1 :]):
            yield case("L59", "ray", around.at(command.line), value="ray start --block")
            return


def _text(command: Command) -> str:
    """Return the words of a command without assignments."""
    return " ".join(word.text for word in command.words if not ASSIGNMENT.match(word.text))


def _follows(later: Command, command: Command) -> bool:
    """Return True if a command is reached after another one ends."""
    is_reached = all(branch in command.branch for branch in later.branch[: len(command.branch)])
    return later.line > command.line and is_reached and later.words[0].text not in ("echo", "exit")


def _ends_early(script: ShellText, launches: Sequence[Launch], around: Surroundings) -> Iterator[Finding]:
    """Report a batch script that ends while launches run in the background."""
    if around.batch is None or not around.is_own_job:
        return
    last = next((launch for launch in reversed(launches) if launch.call.command.background), None)
    if last is None or last.call.program == "script":
        return
    later = [command for command in script.commands if command.line >= last.call.line]
    if any(
        command.words[0].text.rpartition("/")[2] in LASTING and not command.background for command in later
    ):
        return
    after = [launch for launch in launches if launch.call.line >= last.call.line]
    if all(launch.call.command.background for launch in after) and not _may_start(script, last):
        yield case("L60", "ends", last.where, {"program": last.call.program}, value="&")


def _may_start(script: ShellText, last: Launch) -> bool:
    """Return True if a later command in the foreground may run for long: it is none of the shell's short ones."""
    short = {
        "echo",
        "done",
        "fi",
        "date",
        "exit",
        "printf",
        "export",
        "cd",
        "deactivate",
        "module",
        "rm",
        "cp",
        "}",
    }
    later = [command for command in script.commands if command.line > last.call.line]
    return any(
        not command.background and command.words[0].text not in short and "=" not in command.words[0].text
        for command in later
    )


def _array_port(script: ShellText, launches: Sequence[Launch], around: Surroundings) -> Iterator[Finding]:
    """Report a fixed port in the tasks of a job array that may share a node."""
    batch = around.batch
    if (
        batch is None
        or not batch.has("array")
        or batch.takes_whole_nodes
        or batch.text("array").endswith("%1")
    ):
        return
    port = script.setting("MASTER_PORT")
    if port is not None and port.value.isdecimal():
        facts = {"port": port.value}
        yield case(
            "L64",
            "array",
            around.at(port.line),
            facts,
            value=f"MASTER_PORT={port.value}",
            severity="warning",
        )
        return
    for launch in launches:
        fixed = _port(launch)
        if fixed.isdecimal() and launch.call.is_launcher:
            yield case("L64", "array", launch.where, {"port": fixed}, value=fixed, severity="warning")
            return


def _port(launch: Launch) -> str:
    """Return the port of a launch as written, or "" if none is given."""
    if launch.call.program == "torchrun":
        values = launch.options.values
        endpoint = values.get("rdzv-endpoint")
        if endpoint is not None and ":" in endpoint.text:
            return endpoint.text.rpartition(":")[2]
        return values["master-port"].text if "master-port" in values else ""
    word = next((launch.flags[name] for name in PORTS if name in launch.flags), None)
    return word.text if word else launch.config_text("main_process_port")


def _same_port(launches: Sequence[Launch]) -> Iterator[Finding]:
    """Report two launches that run at the same time on one machine with one port."""
    here = [
        one for one in launches if one.call.is_launcher and not one.site.on_each and not one.site.remote
    ]
    for first, second in islice(combinations(here, 2), MOST_PAIRS):
        if not first.call.command.background or first.call.command.branch != second.call.command.branch:
            continue
        if any(command.words[0].text == "wait" for command in _between(first, second)):
            continue
        ports = _port(first), _port(second)
        if ports[0] != ports[1] or "$" in ports[0] or not _takes_port(first) or not _takes_port(second):
            continue
        facts = {"program": first.call.program, "first": first.call.line, "second": second.call.line}
        if ports[0]:
            yield case("L64", "beside", second.where, {"port": ports[0], **facts}, value=ports[0])
        else:
            option = "--main_process_port" if first.call.program == "accelerate" else "--master_port"
            yield case("L64", "default", second.where, {"option": option, **facts}, value=DEFAULT_PORT)
        return


def _between(first: Launch, second: Launch) -> Iterator[Command]:
    for command in first.script.commands:
        if first.call.line <= command.line <= second.call.line:
            yield command


def _takes_port(launch: Launch) -> bool:
    """Return True if a launch listens on its port, or on the default one."""
    if launch.call.program == "torchrun" and not launch.call.legacy:
        return _port(launch) not in ("", "0")
    return launch.told_ranks() != 1 and _port(launch) != "0"
