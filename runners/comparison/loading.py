"""Load the account that a name means: of a local run, of one attempt, of a bundle, or of a run on another host."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from ..diagnosis.log_sources import Named
from ..diagnosis.nccl_facts import NcclFacts, decode, merge
from ..diagnosis.read_logs import logs_of_run, read_run
from ..node.agentless import DiskLink
from ..node.local_agent import open_link
from ..node.run_following import snapshot
from ..reports.bundle_reader import is_bundle, unpacked
from ..run import clock, environment, file_io, run_directories
from ..run.answers import MetricsWindow
from ..run.commands import ReadMetrics
from ..run.errors import RunError, UnreachableError
from ..run.log_files import parse_file_id
from ..run.run_directories import Entry
from ..run.state import Attempt, RunState
from ..run.wire.client import Link, LinkError, new_id
from ..telemetry.curves import BEFORE_ALL, DISTANT
from . import account_facts, account_numbers, outcome_facts, plan_facts
from .account import Account, RunName
from .rank_variables import changes_until, environment_facts

BUCKETS = 600
LOGS_S = 5.0
"""Maximum seconds for reading the transports from NCCL's logs."""


def parsed(text: str) -> RunName:
    """Parse [HOST:]RUN[@ATTEMPT] or the path of a bundle. Raises RunError."""
    if os.path.isfile(text):
        return RunName("", text, None)
    name, attempt = _split_attempt(text)
    host, colon, run = ("", "", name) if os.path.isfile(name) else name.partition(":")
    if not colon:
        host, run = "", name
    if not run.strip() or (colon and not host.strip()):
        raise RunError(f"{text!r} names no run: write a name, NAME@ATTEMPT, HOST:NAME, or a bundle's path")
    return RunName(host, run, attempt)


def _split_attempt(text: str) -> tuple[str, int | None]:
    """Return the text before @ATTEMPT, and the attempt. Raises RunError."""
    head, at, number = text.rpartition("@")
    if not at or "/" in number:
        return text, None
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise RunError(f"{text!r}: write the number of an attempt after the @, as in NAME@2")
    if int(number) == 0:
        raise RunError(f"{text!r}: attempts are counted from 1")
    return head, int(number)


async def load(text: str, ssh_config: str | None = None) -> Account:
    """Return the account that `text` names. `ssh_config`: ssh's configuration file for another host. Raises RunError."""
    name = parsed(text)
    if name.host:
        from .elsewhere import asked  # this import is slow

        return await asked(name, ssh_config)
    if os.path.isfile(name.run):
        if not is_bundle(Path(name.run)):
            raise RunError(
                f"{name.run} is not a bundle: name a file of `distui export`, or a run by its name"
            )
        with unpacked(Path(name.run)) as entry:
            return await _linked(entry, DiskLink(entry), name.attempt, os.path.basename(name.run))
    entry = run_directories.resolve(name.run)
    try:
        link = await open_link(entry)
    except LinkError as error:
        raise UnreachableError(f"{entry.record.name}: {error}") from None
    return await _linked(entry, link, name.attempt, entry.record.name)


async def _linked(entry: Entry, link: Link, number: int | None, title: str) -> Account:
    try:
        state = await snapshot(link)
        return await _account(entry, link, state, number, title)
    except LinkError as error:
        raise UnreachableError(f"{entry.record.name}: {error}") from None
    finally:
        await link.close()


def _attempt(state: RunState, number: int | None, title: str) -> Attempt | None:
    """Return the attempt with that number, by default the newest. Raises RunError if a number names none."""
    attempt = outcome_facts.chosen(state, number)
    if number is not None and attempt is None:
        count = f"its last is {state.attempt}" if state.attempts else "it has none that is recorded"
        raise RunError(f"run {title} has no attempt {number}: {count}")
    return attempt


async def _account(entry: Entry, link: Link, state: RunState, number: int | None, title: str) -> Account:
    attempt = _attempt(state, number, title)
    plan, now = _plan(entry), clock.now()
    kept = environment.read(entry.path)
    values = kept.values if kept is not None else _planned(plan)
    hidden = kept.hidden if kept is not None else frozenset()
    changes, nccl = changes_until(state, number), _nccl(entry, state, number)
    window, own = await _window(link, state, number)
    facts = {
        "outcome": outcome_facts.outcome_facts(state, number),
        "cause": outcome_facts.cause_facts(state, number),
        "plan": plan_facts.plan_facts(plan, state),
        "code": account_facts.code_facts(entry.record.git, attempt),
        "versions": account_facts.version_facts(state, nccl),
        "nodes": account_facts.node_facts(state, attempt),
        "transports": account_facts.transport_facts(nccl),
    }
    measured = (*account_numbers.quantities(window), *account_numbers.extents(state, number, now))
    numbers = {each.name: each for each in measured}
    arguments = plan_facts.argument_facts(plan)
    began = attempt.began if number is not None and attempt is not None else state.began
    return Account(
        title=title if number is None else f"{title}@{number}",
        run=entry.record.run,
        state=facts["outcome"]["state"],
        attempt=number,
        attempts=len(state.attempts) or None,
        live=not state.phase.ended,
        facts=facts | ({} if arguments is None else {"arguments": arguments}),
        env=environment_facts(values, hidden, changes, entry.record),
        env_whole=kept is not None,
        # A variable that a restart set has no fingerprint of the launch.
        fingerprints={
            name: mark for name, mark in entry.record.fingerprints.items() if name not in changes
        },
        quantities=tuple(numbers.values()),
        curves=account_numbers.curves(window, began),
        gaps=(*_problems(entry, state), *own),
    )


def _problems(entry: Entry, state: RunState) -> list[str]:
    damaged = [each.text for each in state.findings.values() if each.id == "damaged"]
    return damaged or entry.history().problems


def _plan(entry: Entry) -> dict[str, Any]:
    """Return the content of plan.json; {} if it cannot be read."""
    try:
        plan = json.loads(file_io.content(entry.path / run_directories.PLAN_FILE))
    except (file_io.FileError, ValueError, RecursionError):
        return {}
    return plan if isinstance(plan, dict) else {}


def _planned(plan: Mapping[str, Any]) -> dict[str, str]:
    env = plan.get("env")
    return {str(name): str(text) for name, text in env.items()} if isinstance(env, dict) else {}


def _nccl(entry: Entry, state: RunState, number: int | None) -> NcclFacts | None:
    """Return the facts of NCCL's logs: of a live run from its agents, else as much as can be read in LOGS_S seconds."""
    if number in (None, state.attempt) and (
        held := [node.nccl for node in state.nodes.values() if node.nccl]
    ):
        try:
            return merge(map(decode, held))
        except msgspec.MsgspecError:
            pass  # facts of another version: read the logs instead
    deadline = clock.monotonic() + LOGS_S
    files = [named for named in logs_of_run(entry, number) if _is_ncclish(named)]
    reading, _ = read_run(files, stopped=lambda: clock.monotonic() > deadline)
    facts = reading.facts()
    return facts if facts.nodes or facts.communicators else None


def _is_ncclish(named: Named) -> bool:
    """Whether a log may have NCCL's lines: its own files, and stdout, which the user may choose for them."""
    file = parse_file_id(named[0])
    return file is not None and file.stream in ("nccl", "out")


def _gpus_of_ranks(state: RunState) -> tuple[int, ...]:
    gpus = {rank.sample.gpu for rank in state.ranks.values() if rank.sample is not None}
    return tuple(sorted(gpu for gpu in gpus if gpu is not None))


async def _window(link: Link, state: RunState, number: int | None) -> tuple[MetricsWindow, list[str]]:
    """Return the metrics of the run or attempt, each as one series, and a sentence per omitted metric."""
    attempt = outcome_facts.chosen(state, number)
    begin, end = BEFORE_ALL, DISTANT
    if number is not None and attempt is not None:
        begin, end = attempt.began, DISTANT if attempt.ended is None else attempt.ended + 1
    indexes = _gpus_of_ranks(state)
    ranks = await link.read_metrics(
        ReadMetrics(new_id(), begin, end, BUCKETS, ("rank", "train"), "all", counts=True)
    )
    if ranks.error or not indexes:
        return ranks, []
    gpus = await link.read_metrics(
        ReadMetrics(new_id(), begin, end, BUCKETS, account_numbers.OF_GPUS, "all", indexes, counts=True)
    )
    if gpus.error or (gpus.begin, gpus.seconds) != (ranks.begin, ranks.seconds):
        return ranks, ["its GPUs' metrics are of another time"] if not gpus.error else []
    return structs.replace(ranks, series=(*ranks.series, *gpus.series)), []
