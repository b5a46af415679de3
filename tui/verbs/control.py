"""nccl, restart, signal, stop, dump, down, autostop, relaunch: commands that are sent to a run."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from ...presets.finding import PlanError
from ...presets.launchers import skypilot
from ...presets.nccl import NcclError, parse_level, parse_subsys
from ...presets.sanitize import clean_text, escaped_json
from ...presets.trusted_files import private_folder
from ...runners import environment, file_io, run_directories
from ...runners.agent.processes import disposition
from ...runners.connect import history, with_link
from ...runners.diagnosis.exceptions import merged
from ...runners.diagnosis.recorder import merged as recorded
from ...runners.errors import NoSuchRunError, RunError, UnreachableError
from ...runners.forced_stop import stop_run
from ...runners.formatting import agreeing, spans_text
from ...runners.hub import cluster_state, launch_order
from ...runners.hub.sky_process import Candidate, candidates_for
from ...runners.launch import sky, this_machine
from ...runners.launch.hosts import pairs
from ...runners.local_agent import open_link
from ...runners.model import (
    Cluster,
    Command,
    CommandDone,
    Down,
    Dump,
    RankPhase,
    Restart,
    SetAutostop,
    SetNccl,
    Signal,
    Stop,
)
from ...runners.state import RunState
from ...runners.wire.client import new_id
from ...runners.wire.link import Link, LinkError
from ..rows import confirm
from ..rows.dumps import by_rank, memory_values, merged_rows
from ..rows.plain import plain
from ..rows.sky_nodes import candidate_table
from .launch import begin, node_resources, show

# -----------------------------------------------------------------------------------------------------------
# nccl, restart, signal, stop: changing a run from the command line.


def nccl(options: argparse.Namespace) -> int:
    """Change NCCL_DEBUG: live where the ranks' NCCL can."""
    if options.reachable and not options.restart:
        raise RunError("--reachable is for a restart: add --restart")
    with _refusing(lambda: _which(options, options.level, "level", "nccl", "INFO")):
        parse_level(options.level)
    with _refusing(lambda: None):
        parse_subsys(options.subsys)
    _there(options)
    command = SetNccl(
        new_id(), options.level, options.subsys, tuple(options.rank), options.seconds, options.restart,
        options.reachable,
    )  # fmt: skip
    return _do(options, command)


def restart(options: argparse.Namespace) -> int:
    """Restart the group in place, after asking."""
    env = {**from_shell(options.from_shell), **pairs(options.env, "--env")}
    both = [name for name in options.unset if name in env]
    if both:
        raise RunError(f"--unset {both[0]}: it is given a value as well: leave out one of the two")
    changes: dict[str, str | None] = {**env, **dict.fromkeys(options.unset)}
    if refused := environment.refusal(changes):
        raise RunError(refused)
    command = Restart(new_id(), env, tuple(options.unset), options.reachable)
    return _do(options, command) if _sure(options, command) else 1


def from_shell(names: list[str]) -> dict[str, str]:
    """Variables of the shell that types the command, by their names. Raises RunError where it has none of them."""
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise RunError(f"--env-from-shell {missing[0]}: this shell has no such variable: export it first")
    return {name: os.environ[name] for name in names}


def stop(options: argparse.Namespace) -> int:
    """End the run, after asking; also where its agent cannot."""
    command = Stop(new_id(), options.grace)
    if not _sure(options, command):
        return 1
    entry = run_directories.resolve(options.run)
    try:
        done = asyncio.run(stop_run(entry, command, _to_stderr, open_link))
    except LinkError as error:
        raise UnreachableError(f"{entry.record.name}: {error}") from None
    return _report(options, done)


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"distui: {clean_text(text)}\n")


def send_signal(options: argparse.Namespace) -> int:
    """Send a signal to ranks; where it would end one, after asking."""
    with _refusing(lambda: _which(options, options.signal, "signal", "signal", "USR1")):
        number = parse_signal(options.signal)
    state = _there(options, always=confirm.signal_name(number.name) not in confirm.HARMLESS)
    effect = consequence(state, number, options.rank) if state is not None and not state.phase.ended else ""
    if effect and not options.yes:
        if not sys.stdin.isatty():
            raise RunError(f"{effect}: add --yes to send it")
        if not _answered(f"{clean_text(effect)}. "):
            return 1
    return _do(options, Signal(new_id(), options.signal, tuple(options.rank)))


def parse_signal(text: str) -> signal.Signals:
    """A signal by its name, with or without SIG. Raises RunError."""
    try:
        return signal.Signals[f"SIG{confirm.signal_name(text)}"]
    except KeyError:
        raise RunError(f"there is no signal {text}: name one as in USR1, TERM or STOP") from None


def consequence(state: RunState, number: signal.Signals, asked: Sequence[int]) -> str:
    """What a signal does beside being heard, as a sentence; "" where every rank goes on after it."""
    name = confirm.signal_name(number.name)
    if name in confirm.HARMLESS:
        return ""
    hostname = os.uname().nodename
    ends, unseen = [], []
    for rank in sorted(set(asked) or state.ranks.keys()):
        process = state.ranks.get(rank)
        if process is None or process.pid is None or process.phase is not RankPhase.RUNNING:
            continue
        node = state.nodes.get(process.place.node)
        if node is None or node.host != hostname:
            unseen.append(rank)
        elif number is signal.SIGKILL or disposition(process.pid, number) == "default":
            ends.append(rank)
    parts = []
    if ends:
        why = (
            "" if number is signal.SIGKILL else f", which {agreeing(ends, 'has', 'have')} no handler for it"
        )
        parts.append(f"{name} ends {spans_text('rank', ends)}{why}")
    if unseen:
        parts.append(
            f"{name} ends {spans_text('rank', unseen)} unless there is a handler for it, "
            "which cannot be seen from this machine"
        )
    return "; ".join(parts)


@contextlib.contextmanager
def _refusing(ask: Callable[[], None]) -> Iterator[None]:
    """A word that is none of those there are is wrong usage, unless `ask` raises something better. Raises RunError."""
    try:
        yield
    except (RunError, NcclError) as error:
        ask()
        raise RunError(str(error)) from None


def _which(options: argparse.Namespace, word: str, kind: str, verb: str, example: str) -> None:
    """The only word of `distui nccl RUN` is RUN: what is missing is the level. Raises RunError."""
    if options.run is not None:
        return
    with contextlib.suppress(NoSuchRunError):
        name = run_directories.resolve(word).record.name
        raise RunError(f"which {kind}? `distui {verb} {name} {example}`")


def _there(options: argparse.Namespace, *, always: bool = False) -> RunState | None:
    """The state, where ranks are named (or `always`), which then exist; else None. Raises RunError."""
    if not options.rank and not always:
        return None
    state = asyncio.run(with_link(options.run, lambda entry, link: history(link)))
    if not state.phase.ended:
        check_ranks(state, options.rank)
    return state


def check_ranks(state: RunState, asked: Sequence[int]) -> None:
    """Raises RunError where the newest attempt has no such rank, and says which it has."""
    missing = sorted(set(asked) - state.ranks.keys())
    if missing and state.ranks:
        raise RunError(
            f"there is no {spans_text('rank', missing)} in {state.name}: it has {spans_text('rank', state.ranks)}"
        )


def _do(options: argparse.Namespace, command: Command) -> int:
    async def use(entry: run_directories.Entry, link: Link) -> CommandDone:
        return await link.send(command)  # no history is asked for: the answer is all that comes

    return _report(options, asyncio.run(with_link(options.run, use)))


def _report(options: argparse.Namespace, done: CommandDone) -> int:
    if options.json:
        document = msgspec.json.encode({"ok": done.ok, "text": done.text, "data": done.data})
        sys.stdout.write(escaped_json(document.decode()) + "\n")
    elif done.ok:
        sys.stdout.write(clean_text(done.text) + "\n")
    if not done.ok:
        sys.stderr.write(f"distui: {clean_text(done.text)}\n")
    return 0 if done.ok else 1


def _sure(options: argparse.Namespace, command: Restart | Stop) -> bool:
    """Ask what the cockpit asks; without a terminal only --yes is an answer. Raises RunError."""
    if options.yes:
        return True
    if not sys.stdin.isatty():
        verb = type(command).__name__.lower()
        raise RunError(f"{verb} asks first, and there is no terminal to ask on: add --yes")
    state = run_directories.resolve(options.run).state()  # its files: an agent may not answer
    asked = confirm.stop(state, command) if isinstance(command, Stop) else confirm.restart(state, command)
    return _answered("".join(f"{line}\n" for line in (clean_text(asked.title), *plain(asked.lines))))


def _answered(question: str) -> bool:
    """Whether the user, being asked, says yes."""
    sys.stderr.write(f"{question}Really? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    sys.stderr.write("nothing was changed\n")
    return False


# -----------------------------------------------------------------------------------------------------------
# dump: stacks, memory and flight recorders of all ranks, as text and JSON.


BATCH = 32
"""Ranks of one question: what they answer together has to fit into one line of the link."""
NAMES = {"stacks": "stacks-rank-{}.txt", "flight": "flight-rank-{}.json", "memory": "memory-rank-{}.json"}
"""Of the files that --out writes."""


def dump(options: argparse.Namespace) -> int:
    """Ask, and print what was answered: merged, as it came (--raw), as JSON, or into files. Raises RunError."""
    if options.record and options.what != "memory":
        raise RunError("--record is for memory: `distui dump RUN memory --record`")
    done = asyncio.run(with_link(options.run, lambda entry, link: _ask(link, options)))
    texts = by_rank(done.data)
    if options.json:
        sys.stdout.write(json.dumps(_document(options.what, done, texts)) + "\n")
    elif done.ok and options.record:
        sys.stdout.write("\n".join(f"rank {rank}: {texts[rank]}" for rank in sorted(texts)) + "\n")
    elif done.ok:
        lines = _raw(texts) if options.raw else shown(options.what, done.data)
        lines += ["", f"Not all have answered: {done.text}"] if "; " in done.text else []
        sys.stdout.write("\n".join(clean_text(line) for line in lines) + "\n")
    if done.ok and options.out is not None and not options.record:
        _write(Path(options.out), options.what, texts)
    if not done.ok:
        sys.stderr.write(f"distui: {clean_text(done.text)}\n")
    return 0 if done.ok else 1


async def _ask(link: Link, options: argparse.Namespace) -> CommandDone:
    """All ranks at once, some in each question."""
    what = "record" if options.record else options.what
    state = await history(link)
    if not state.phase.ended:
        check_ranks(state, options.rank)
    ranks = sorted(set(options.rank)) or _running(state)
    batches = [tuple(ranks[at : at + BATCH]) for at in range(0, len(ranks), BATCH)] or [()]
    if len(batches) == 1 and not options.rank:
        batches = [()]
    asked = [link.send(Dump(new_id(), what, batch)) for batch in batches]
    return together(await asyncio.gather(*asked))


def _running(state: RunState) -> list[int]:
    """Ranks of the newest attempt that have a process: of a question to one that is gone nothing would come."""
    return sorted(number for number, rank in state.ranks.items() if rank.phase is RankPhase.RUNNING)


def together(answers: Sequence[CommandDone]) -> CommandDone:
    """Several answers as one; it is one as soon as any rank has answered."""
    if len(answers) == 1:
        return answers[0]
    data = {rank: text for answer in answers for rank, text in answer.data.items()}
    problems = [answer.text.partition("; ")[2] if answer.ok else answer.text for answer in answers]
    reasons = list(dict.fromkeys(text for text in problems if text))
    if not data:
        return CommandDone(answers[0].id, False, "; ".join(reasons))
    return CommandDone(answers[0].id, True, "; ".join([f"{len(data)} ranks answered", *reasons]), data)


def shown(what: str, data: Mapping[str, str]) -> list[str]:
    """What the ranks answered, merged. Raises RunError where that cannot be."""
    try:
        return plain(merged_rows(what, data))
    except ValueError as error:
        raise RunError(
            f"what a rank told of its {what} cannot be read ({error}): --raw prints it"
        ) from None


def values(what: str, texts: Mapping[int, str]) -> list[dict[str, Any]]:
    """The same for --json. Raises ValueError."""
    if what == "stacks":
        return [{"ranks": list(group.ranks), "frames": list(group.frames)} for group in merged(texts)]
    return memory_values(texts) if what == "memory" else [asdict(group) for group in recorded(texts)]


def _document(what: str, done: CommandDone, texts: Mapping[int, str]) -> dict[str, Any]:
    document: dict[str, Any] = {"ok": done.ok, "text": done.text, "data": done.data}
    if texts:
        try:
            document["merged"] = values(what, texts)
        except ValueError:
            document["merged"] = None  # --record answers with a sentence
    return document


def _raw(texts: Mapping[int, str]) -> list[str]:
    return [
        line for rank in sorted(texts) for line in (f"--- rank {rank}", *texts[rank].rstrip().splitlines())
    ]


def _write(folder: Path, what: str, texts: Mapping[int, str]) -> None:
    """A file a rank, none of them replaced. Raises RunError."""
    paths = {rank: folder / NAMES[what].format(rank) for rank in sorted(texts)}
    there = next((path for path in paths.values() if path.exists()), None)
    if there is not None:
        raise RunError(f"{there} is there already: name another directory with --out")
    try:
        private_folder(folder)
        for rank, path in paths.items():
            file_io.write_atomically(path, texts[rank].encode())
    except OSError as error:
        raise RunError(
            f"{folder} cannot be written ({error.strerror}): name another directory with --out"
        ) from None
    sys.stderr.write(f"{len(paths)} files written in {folder}\n")


# -----------------------------------------------------------------------------------------------------------
# Nodes that SkyPilot brings: candidates, and what becomes of a run's cluster.


def candidates(options: argparse.Namespace) -> int:
    """Which nodes SkyPilot would take, cheapest first."""
    text = options.nnodes or "1"
    if not text.isdecimal() or not int(text):
        raise RunError(f"--nnodes {text}: a number of nodes, from 1 on")
    try:
        wish = skypilot.check(node_resources(options))
    except PlanError as error:
        raise RunError(str(error)) from None
    offers = asyncio.run(candidates_for(wish, int(text)))
    if options.json:
        rows = [{field: getattr(offer, field) for field in Candidate.__slots__} for offer in offers]
        sys.stdout.write(json.dumps(rows) + "\n")
        return 0 if offers else 1
    sys.stdout.write("\n".join(candidate_table(offers)) + "\n")
    return 0 if offers else 1


def down(options: argparse.Namespace) -> int:
    """Take a run's cluster down, after its name was typed."""
    entry, cluster = _cluster(options.run)
    if cluster.down:
        return _answer(options, True, f"cluster {cluster.name} is down already")
    command, typed = Down(new_id(), cluster.name), options.yes
    if typed is None:
        state = entry.state()
        state.cluster, state.phase = cluster, run_directories.phase(entry)
        asked = confirm.down(state, command)
        sys.stderr.write("\n".join([asked.title, *plain(asked.lines), "type its name to take it down: "]))
        sys.stderr.flush()
        typed = sys.stdin.readline().strip()
    if typed != cluster.name:
        raise RunError(f"{typed!r} is not the name of the cluster ({cluster.name}): nothing was done")
    return _command(options, entry, command)


def autostop(options: argparse.Namespace) -> int:
    """Minutes without a job after which a run's cluster goes."""
    entry, cluster = _cluster(options.run)
    if cluster.down:
        raise RunError(f"cluster {cluster.name} is down")
    return _command(options, entry, SetAutostop(new_id(), options.minutes))


def relaunch(options: argparse.Namespace) -> int:
    """The same launch again, as a new run."""
    entry = run_directories.resolve(options.run)
    if not run_directories.ended(entry) and options.name is None and not options.dry_run:
        raise RunError(
            f"{entry.record.name} is live: `distui stop {entry.record.name}` first, or --name OTHER"
        )
    place = this_machine if launch_order.read(entry.path) is None else sky
    launch = place.again(entry, options.name)
    return show(launch, options) if options.dry_run else begin(launch, options)


def _cluster(run: str | None) -> tuple[run_directories.Entry, Cluster]:
    """A run and its cluster. Raises RunError."""
    entry = run_directories.resolve(run)
    launched = launch_order.read(entry.path)
    if launched is None:
        raise RunError(f"{entry.record.name} has no cluster: it was not launched through SkyPilot")
    if launched.managed:
        raise RunError(f"{entry.record.name} is a managed job: SkyPilot takes its cluster down itself")
    cluster = entry.state().cluster or Cluster()
    return entry, msgspec.structs.replace(cluster, name=launched.cluster)


def _command(options: argparse.Namespace, entry: run_directories.Entry, command: Down | SetAutostop) -> int:
    """Through the hub where the run is live, else straight to SkyPilot."""

    async def use(entry: run_directories.Entry, link: Any) -> Any:
        return await link.send(command)

    if run_directories.ended(entry):
        ok, text = asyncio.run(cluster_state.carry_out(entry, command))
    else:
        done = asyncio.run(with_link(entry.record.run, use))
        ok, text = done.ok, done.text
    return _answer(options, ok, text)


def _answer(options: argparse.Namespace, ok: bool, text: str) -> int:
    if options.json:
        sys.stdout.write(json.dumps({"ok": ok, "text": text}) + "\n")
    elif ok:
        sys.stdout.write(f"{clean_text(text)}\n")
    else:
        sys.stderr.write(f"distui: {clean_text(text)}\n")
    return 0 if ok else 1
