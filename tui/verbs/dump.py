"""dump: stacks, memory and flight recorders of all ranks, as text and JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...presets.sanitize import clean_text
from ...presets.trusted_files import private_folder
from ...runners import file_io
from ...runners.connect import history, with_link
from ...runners.diagnosis import exceptions as merging
from ...runners.diagnosis import recorder as recorders
from ...runners.errors import RunError
from ...runners.formatting import NA, agreeing, plural, size_text, spans, spans_text, time_of_day
from ...runners.model import CommandDone, Dump, RankPhase
from ...runners.state import RunState
from ...runners.wire.client import new_id
from ...runners.wire.link import Link
from ..rows.plain import table
from .control import check_ranks

# -----------------------------------------------------------------------------------------------------------
# What ranks answered to a dump, as one view: lines for a person, values for JSON. Pure.


CUDA = "allocated_bytes.all.current", "reserved_bytes.all.current"
PEAKS = "allocated_bytes.all.peak", "reserved_bytes.all.peak"
SPLIT = "inactive_split_bytes.all.current"
MOST = 12
"""Runs of ranks that a line names."""
VIEWER = "https://pytorch.org/memory_viz"


def stacks(texts: Mapping[int, str]) -> list[str]:
    """Equal stacks once: "62 ranks here"; `>` marks frames in which a group differs from the largest."""
    lines: list[str] = []
    for number, group in enumerate(merging.merged(texts)):
        count = len(group.ranks)
        where = f"{plural(count, 'rank')} ({spans(group.ranks, MOST)}) {'there' if number else 'here'}"
        lines += [""] if number else []
        if not group.frames:
            lines.append(f"{where}: no Python stack of the main thread is known")
            continue
        lines.append(f"{where}:")
        apart = len(group.frames) - group.shared
        lines += [f"  {'>' if number and at < apart else ' '} {row}" for at, row in enumerate(group.frames)]
    return lines


def stack_values(texts: Mapping[int, str]) -> list[dict[str, Any]]:
    """The same for --json."""
    return [{"ranks": list(group.ranks), "frames": list(group.frames)} for group in merging.merged(texts)]


def flight(texts: Mapping[int, str]) -> list[str]:
    """A table a group, and what it shows. Raises ValueError."""
    lines: list[str] = []
    for group in recorders.merged(texts):
        lines += [""] if lines else []
        named = f"{group.name} ({group.desc})" if group.desc else group.name
        members = f"{len(group.ranks)} ranks" + (
            f" ({spans(group.ranks, MOST)})" if group.sure else " known"
        )
        lines += [f"Group {named}: {members}", *(f"    {row}" for row in _rows(group))]
        lines += [f"    {sentence}" for sentence in _sentences(group)]
    return lines or [_nothing(texts)]


def _nothing(texts: Mapping[int, str]) -> str:
    """Why no call is there: torch before 2.8 or so has no recorder for gloo."""
    kinds = {
        str(entry.get("kind")) for text in texts.values() for entry in json.loads(text).get("recorders", ())
    }
    if kinds == {"nccl"}:
        return (
            "No call is recorded: this torch records NCCL's collectives alone, and what gloo does is n/a."
        )
    return "No rank has called a collective yet."


def flight_values(texts: Mapping[int, str]) -> list[dict[str, Any]]:
    """The same for --json. Raises ValueError."""
    return [asdict(group) for group in recorders.merged(texts)]


def _rows(group: recorders.RecorderGroup) -> list[str]:
    """Ranks that are equally far share a row."""
    alike: dict[tuple[str, str, str], list[int]] = {}
    for part in group.parts:
        newest = "" if part.newest is None else f"{part.newest.what}  {part.newest.site}".rstrip()
        alike.setdefault((_number(part.called), _number(part.completed), newest), []).append(part.rank)
    rows = [("ranks", "called", "completed", "newest call")]
    rows += [(spans(those, MOST), *row) for row, those in sorted(alike.items(), key=lambda item: item[1])]
    return table(rows, frozenset({1, 2}))


def _number(value: int | None) -> str:
    return NA if value is None else str(value)


def _sentences(group: recorders.RecorderGroup) -> list[str]:
    sentences = []
    if group.lowest:
        verb = agreeing(group.lowest, "is", "are")
        sentences.append(f"Furthest behind {verb} {spans_text('rank', group.lowest)}.")
    for wait in group.waits:
        clock = time_of_day(wait.since, utc=True)
        site = f" ({wait.call.site})" if wait.call.site else ""
        verb = agreeing(wait.ranks, "waits", "wait")
        who = spans_text("rank", wait.ranks).capitalize()
        text = f"{who} {verb} in #{wait.call.seq} {wait.call.what}{site} since {clock}"
        if wait.missing:
            have = agreeing(wait.missing, "has", "have")
            text += f"; {spans_text('rank', wait.missing)} {have} not called it"
        elif not group.unasked:
            text += "; every rank known has called it" if set(wait.ranks) == set(group.ranks) else ""
        sentences.append(text + ".")
    for parting in group.divergences:
        shown = [
            f"{call.what} at {call.site or NA} ({spans_text('rank', those)})"
            for call, those in parting.variants
        ]
        sentences.append(f"First difference in {parting.of}: #{parting.seq}: {'; '.join(shown)}.")
    if group.unasked:
        sentences.append(f"Nothing was told by {spans_text('rank', group.unasked)}.")
    return sentences


def memory(texts: Mapping[int, str]) -> list[str]:
    """A row a rank and device, and where the snapshots are. Raises ValueError."""
    entries = memory_values(texts)
    rows: list[tuple[str, ...]] = [("rank", "resident", "peak")]
    if any(entry["devices"] for entry in entries):
        rows[0] += ("GPU", "allocated", "reserved", "peak alloc.", "peak res.", "split", "OOMs")
    for entry in entries:
        host = (str(entry["rank"]), size_text(entry["rss_bytes"]), size_text(entry["max_rss_bytes"]))
        rows += [(*host, *_device(name, its)) for name, its in entry["devices"].items()] or [
            host + (NA,) * (len(rows[0]) - 3)
        ]
    lines = table(rows, frozenset(range(len(rows[0]))))
    return [*lines, *_snapshots(entries)]


def _device(name: str, its: Mapping[str, Any]) -> tuple[str, ...]:
    split = its["fragmentation"]
    sizes = (size_text(its[key]) for key in ("allocated", "reserved", "peak_allocated", "peak_reserved"))
    return (name, *sizes, NA if split is None else f"{split:.0%}", _number(its["ooms"]))


def _snapshots(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    paths = [f"    rank {entry['rank']}: {entry['snapshot']}" for entry in entries if entry["snapshot"]]
    lines = [""] if paths or any(entry["note"] for entry in entries) else []
    if paths:
        curve = all(entry["recording"] for entry in entries if entry["snapshot"])
        hint = "" if curve else "; `distui dump RUN memory --record` lets the next ones show a curve"
        lines += [f"Snapshots on the ranks' nodes, for {VIEWER}{hint}:", *paths]
    notes: dict[str, list[int]] = {}
    for entry in entries:
        if entry["note"]:
            notes.setdefault(entry["note"], []).append(entry["rank"])
    return lines + [f"{spans_text('rank', those).capitalize()}: {note}." for note, those in notes.items()]


def memory_values(texts: Mapping[int, str]) -> list[dict[str, Any]]:
    """The same for --json: sizes in bytes; `fragmentation` is the share of what is reserved that lies unused in
    blocks which are used in part. Raises ValueError."""
    entries = []
    for rank in sorted(texts):
        answer = json.loads(texts[rank])
        if not isinstance(answer, dict):
            raise ValueError("it is no object")
        cuda = answer.get("cuda") or {}
        entries.append(
            {
                "rank": rank,
                "rss_bytes": answer.get("rss_bytes"),
                "max_rss_bytes": answer.get("max_rss_bytes"),
                "devices": {name: _device_values(its) for name, its in sorted(cuda.items())},
                "recording": bool(answer.get("recording")),
                "snapshot": answer.get("snapshot"),
                "note": answer.get("note") or answer.get("snapshot_error"),
            }
        )
    return entries


def _device_values(its: Mapping[str, Any]) -> dict[str, Any]:
    reserved, split = its.get(CUDA[1]), its.get(SPLIT)
    return {
        "allocated": its.get(CUDA[0]),
        "reserved": reserved,
        "peak_allocated": its.get(PEAKS[0]),
        "peak_reserved": its.get(PEAKS[1]),
        "total": its.get("total_bytes"),
        "fragmentation": split / reserved if reserved and split is not None else None,
        "retries": its.get("num_alloc_retries"),
        "ooms": its.get("num_ooms"),
    }


VALUES = {"stacks": stack_values, "flight": flight_values, "memory": memory_values}


# -----------------------------------------------------------------------------------------------------------
# dump: what the ranks are doing, asked now of all at once and told as one view.


BATCH = 32
"""Ranks of one question: what they answer together has to fit into one line of the link."""
NAMES = {"stacks": "stacks-rank-{}.txt", "flight": "flight-rank-{}.json", "memory": "memory-rank-{}.json"}
"""Of the files that --out writes."""


def dump(options: argparse.Namespace) -> int:
    """Ask, and print what was answered: merged, as it came (--raw), as JSON, or into files. Raises RunError."""
    if options.record and options.what != "memory":
        raise RunError("--record is for memory: `distui dump RUN memory --record`")
    done = asyncio.run(with_link(options.run, lambda entry, link: _ask(link, options)))
    texts = {int(rank): text for rank, text in done.data.items()}
    if options.json:
        sys.stdout.write(json.dumps(_document(options.what, done, texts)) + "\n")
    elif done.ok and options.record:
        sys.stdout.write("\n".join(f"rank {rank}: {texts[rank]}" for rank in sorted(texts)) + "\n")
    elif done.ok:
        lines = _raw(texts) if options.raw else shown(options.what, texts)
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


def shown(what: str, texts: Mapping[int, str]) -> list[str]:
    """What the ranks answered, merged. Raises RunError where that cannot be."""
    try:
        return _MERGED[what](texts)
    except ValueError as error:
        raise RunError(
            f"what a rank told of its {what} cannot be read ({error}): --raw prints it"
        ) from None


_MERGED = {"stacks": stacks, "flight": flight, "memory": memory}


def _document(what: str, done: CommandDone, texts: Mapping[int, str]) -> dict[str, Any]:
    document: dict[str, Any] = {"ok": done.ok, "text": done.text, "data": done.data}
    if what in VALUES and texts:
        try:
            document["merged"] = VALUES[what](texts)
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
