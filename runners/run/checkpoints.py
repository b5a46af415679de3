"""Facts about checkpoints from names and reports: pure functions that agent, status and cockpit share."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence

import msgspec
from msgspec import structs

from .formatting import duration_exact, duration_text, elapsed, size_text, time_of_day
from .model import Checkpoint

# --- report of a save, as inrank/checkpoint_saves.py writes it ---


class SaveReport(msgspec.Struct, frozen=True):
    """One line of a rank's file of saves."""

    state: str
    """One of "began", "done" or "failed"."""
    path: str
    source: str
    begin: float
    """Unix time, by the rank's clock."""
    end: float | None = None
    count: int | None = None
    """Optimizer steps of the process so far."""
    step: int | None = None
    file: tuple[int, int, int] | None = None
    """Device, inode and size of a single file right after the save; the file may be renamed later."""

    @property
    def key(self) -> tuple[str, float]:
        """Common key of all lines about one save."""
        return self.path, self.begin


APART_S = 1.0
"""Maximum seconds between two parts of one checkpoint."""


def grouped(done: Sequence[tuple[int, SaveReport]]) -> list[list[tuple[int, SaveReport]]]:
    """Group saves (rank, report) that are parts of one checkpoint.

    Parts have one path (a collective save) or one folder: shards of several ranks, or separate files of model and
    optimizer. They were saved one directly after the other, after the same number of steps.
    """
    groups: dict[tuple[str, int | None], list[list[tuple[int, SaveReport]]]] = {}
    for rank, report in sorted(done, key=lambda part: part[1].begin):
        folder = os.path.dirname(report.path) if report.file is not None else report.path
        same = groups.setdefault((folder, report.count), [])
        if same and report.begin - max(part.end or part.begin for _, part in same[-1]) <= APART_S:
            same[-1].append((rank, report))
        else:
            same.append([(rank, report)])
    return [group for same in groups.values() for group in same]


RENAMED_S = 1.0
"""Age in seconds before a save is reported: it may still have its temporary name until then."""


def settled_parts(parts: Sequence[tuple[int, SaveReport]], writing: Collection[str], now: float) -> bool:
    """Whether all parts are complete and have their final names; `writing`: paths of saves that have begun."""
    return all(report.path not in writing and (report.end or 0.0) <= now - RENAMED_S for _, report in parts)


def checkpoint_of(parts: Sequence[tuple[int, SaveReport]], path: str, size: int | None) -> Checkpoint:
    """Build one checkpoint from its parts; `path` is its current path, `size` its bytes."""
    reports = [report for _, report in parts]
    begin, end = (
        min(report.begin for report in reports),
        max(report.end or report.begin for report in reports),
    )
    named = next((report.step for report in reports if report.step is not None), None)
    count = max((report.count for report in reports if report.count is not None), default=None)
    return Checkpoint(
        path=path,
        at=end,
        source=reports[0].source,
        step=named if named is not None else _plausible(step_in(path), count),
        rank=min(rank for rank, _ in parts),
        duration_s=max(0.0, end - begin),
        size=size,
        complete=all(report.state == "done" for report in reports),
        count=count,
    )


def _plausible(step: int | None, count: int | None) -> int | None:
    """Return the step in a name, unless it is so far below the actual steps (`count`) that it counts epochs.

    Counting from 0 and a second optimizer per step are no reason to doubt it.
    """
    return None if step is not None and 3 * step + 2 < (count or 0) else step


def common_path(parts: Sequence[tuple[int, SaveReport]]) -> str:
    """Path for all parts: for copies the one with a step in its name, for shards their folder."""
    paths = sorted({report.path for _, report in parts})
    if len(paths) == 1:
        return paths[0]
    ranks = {rank for rank, _ in parts}
    sizes = {report.file[2] for _, report in parts if report.file is not None}
    numbered = [path for path in paths if step_in(path) is not None]
    if len(ranks) == 1 and len(sizes) == 1 and numbered:
        return numbered[0]
    return os.path.dirname(paths[0])


# --- names ---

_STEP = re.compile(
    r"(?:global_?step|iter(?:ation)?|steps?|checkpoint|ckpt|st)[-_=.]?0*(\d{1,12})(?!\d)", re.IGNORECASE
)
"""global_step1000 (DeepSpeed), step=500 (Lightning), checkpoint-500 (transformers), iter_0000500 (Megatron-LM)."""
_NAMED = re.compile(
    r"(?:global_?step|iter|step|checkpoint|ckpt|epoch)[-_=.]?\d+|(?:last|latest|best|final|model|checkpoint|ckpt)\b.*",
    re.IGNORECASE,
)
SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp")
_UNFINISHED = re.compile(r"(^|[._-])(tmp|temp|partial|part|incomplete)([._-]|\d*$)|~$", re.IGNORECASE)


def step_in(path: str) -> int | None:
    """Return the step in the last two parts of a path: "…/step-00001000.pt" → 1000; None without one."""
    for part in reversed(path.rstrip("/").split("/")[-2:]):
        hits = _STEP.findall(part)
        if hits:
            return int(hits[-1])
    return None


def is_checkpoint_name(name: str, folder: bool) -> bool:
    """Whether a file or folder in a checkpoint folder is a complete checkpoint, by its name."""
    if _UNFINISHED.search(name):
        return False
    return bool(_NAMED.match(name)) if folder else name.endswith(SUFFIXES)


OPTIONS = """
    checkpoint-dir checkpoint-path checkpoints-dir ckpt-dir ckpt-path save-dir save-path save
    output-dir out-dir default-root-dir checkpoint.folder
"""
"""Options of scripts for the folder of their checkpoints."""


def folder_option(words: Iterable[str]) -> str | None:
    """Return the folder for checkpoints in a script's arguments; the last one counts, as with argparse."""
    folder, taken = None, False
    for word in words:
        if taken:
            folder, taken = word, False
            continue
        name, equals, value = word.partition("=")
        if name.lstrip("-").replace("_", "-") in OPTIONS.split() and (name.startswith("-") or equals):
            if equals:
                folder = value
            else:
                taken = True
    return folder or None


# --- texts ---


def checkpoint_text(checkpoint: Checkpoint, now: float) -> str:
    """Age and step: "12 min ago (step 18,000)"; `now` is unix time by the checkpoint's clock."""
    age = elapsed(checkpoint.at, now)
    ago = f"{duration_text(age)} ago" if age is not None else f"at {time_of_day(checkpoint.at)}"
    return ago if checkpoint.step is None else f"{ago} (step {checkpoint.step:,})"


def checkpoint_line(checkpoint: Checkpoint, now: float) -> str:
    """All facts about a checkpoint in one line."""
    took = "" if checkpoint.duration_s is None else f"in {duration_exact(checkpoint.duration_s)}"
    size = "" if checkpoint.size is None else size_text(checkpoint.size)
    parts = (
        "" if checkpoint.complete else "incomplete",
        size,
        took,
        f"by {checkpoint.source}",
        checkpoint.path,
    )
    return f"{checkpoint_text(checkpoint, now)}: {', '.join(part for part in parts if part)}"


# --- polling of a folder ---


class Seen(msgspec.Struct, frozen=True):
    """One checkpoint in a folder at one time: its newest change (unix time) and its bytes."""

    path: str
    changed: float
    size: int
    whole: bool = True
    """False if required files are missing."""


def settled(
    before: Iterable[Seen], now: Iterable[Seen], reported: Iterable[Checkpoint]
) -> list[Checkpoint]:
    """Return new checkpoints that no longer grow: one that changed between two polls is still being written."""
    held = {seen.path: seen for seen in before}
    already = {(each.path, each.at) for each in reported}
    return [
        Checkpoint(
            path=seen.path,
            at=seen.changed,
            source="folder",
            step=step_in(seen.path),
            size=seen.size,
            complete=seen.whole,
        )
        for seen in sorted(now, key=lambda seen: seen.changed)
        if held.get(seen.path) == seen and (seen.path, seen.changed) not in already
    ]


def same_save(first: Checkpoint, other: Checkpoint) -> bool:
    """Whether two reports concern one save of one checkpoint: a later part, or another node's report."""
    return (first.path, first.step, first.count) == (other.path, other.step, other.count)


def joined(first: Checkpoint, other: Checkpoint) -> Checkpoint:
    """Merge two reports about one save."""
    sizes = [each.size for each in (first, other) if each.size is not None]
    took = [each.duration_s for each in (first, other) if each.duration_s is not None]
    return structs.replace(
        other,
        at=max(first.at, other.at),
        duration_s=max(took, default=None),
        size=max(sizes, default=None),
        complete=first.complete and other.complete,
    )
