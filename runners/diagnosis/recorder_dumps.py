"""Read torch's flight recorder dumps (nccl_trace_rank_N), and compare those of several ranks.

The dumps are pickles. `loaded` creates only dicts, lists, strings and numbers from them, in bounded number.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar

from ...presets.finding import Role, Severity
from ..run.formatting import spans_text
from .error_lines import PLACE
from .heads import Head, heads_of
from .nccl_facts import FactLine
from .rank_dumps import DEFAULT, CollectiveWait, Divergence, GroupRecord, Key, RecorderGroup, merged, read
from .rules import First, Rule, RuleHits

MOST_BYTES, MOST_STEPS, MOST_VALUES = 128 << 20, 8_000_000, 8_000_000
"""Maximum size of a dump, opcodes of its pickle, and values in it. 20,000 calls with stacks take 2,000,000 opcodes."""
DEPTH, LONGEST = 16, 400
"""Maximum nesting of containers, and maximum number of characters that are kept of a text."""
KEPT = 256
"""Maximum number of newest calls kept per rank and group, and of those that are not done."""

_NUMBER = re.compile(r"(\d{1,7})(?:\.\w+)?$")
_MAGIC = re.compile(rb"\x80[\x02-\x05]")
_SIGNS = (b"pg_config", b"nccl_version", b"comm_lib_version")
"""First keys in a recorder's dump."""
_JSON = re.compile(
    rb'\s*\{\s*"(?:version|nccl_version|comm_lib_version|pg_config|pg_status|entries|recorders|members)":'
)


class DumpError(ValueError):
    """A file is not a readable dump."""


def is_dump(head: bytes) -> bool:
    """Whether a file with this beginning is a recorder's dump, as pickle or JSON."""
    if _MAGIC.match(head) is None:
        return _JSON.match(head) is not None
    return any(sign in head for sign in _SIGNS)


def rank_of_dump(name: str) -> int | None:
    """ "nccl_trace_rank_3" → 3. torch appends the rank to any configured name."""
    match = _NUMBER.search(name.removesuffix(".gz"))
    return int(match[1]) if match else None


class _Plain(pickle._Unpickler):
    """An unpickler with only the opcodes for plain data: it imports and calls nothing.

    Python's C unpickler may allocate gigabytes for a few input bytes. This one does not.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {}
    steps = 0

    def find_class(self, module: str, name: str) -> Any:
        raise DumpError(f"it names {module}.{name}"[:200])

    def persistent_load(self, pid: Any) -> Any:
        raise DumpError("it names something outside of it")


_STEP_NAMES = """
    PROTO FRAME STOP MARK POP POP_MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG1 BINFLOAT
    SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES EMPTY_DICT EMPTY_LIST EMPTY_TUPLE
    TUPLE TUPLE1 TUPLE2 TUPLE3 LIST APPEND APPENDS MEMOIZE PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET
"""
_STEPS = tuple(_STEP_NAMES.split())


def _counted(step: Callable[[Any], None]) -> Callable[[Any], None]:
    def run(unpickler: _Plain) -> None:
        unpickler.steps += 1
        if unpickler.steps > MOST_STEPS:
            raise DumpError(f"it has more than {MOST_STEPS:,} steps")
        step(unpickler)

    return run


def _set(into: Any, pairs: list[Any]) -> None:
    """Store pairs whose keys are strings or small integers. Other keys may be chosen to make a dict slow."""
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        if not isinstance(key, str) and not (isinstance(key, int) and abs(key) < 1 << 31):
            raise DumpError("its keys are not all strings")
        into[key] = value


def _set_item(unpickler: Any) -> None:
    value, key = unpickler.stack.pop(), unpickler.stack.pop()
    _set(unpickler.stack[-1], [key, value])


def _set_items(unpickler: Any) -> None:
    pairs = unpickler.pop_mark()
    _set(unpickler.stack[-1], pairs)


for _name in _STEPS:
    _code = getattr(pickle, _name)[0]
    _Plain.dispatch[_code] = _counted(pickle._Unpickler.dispatch[_code])
_Plain.dispatch[pickle.SETITEM[0]] = _counted(_set_item)
_Plain.dispatch[pickle.SETITEMS[0]] = _counted(_set_items)


def loaded(data: bytes) -> dict[str, Any]:
    """Return the content of a dump. Raises DumpError."""
    try:
        value = _Plain(io.BytesIO(data)).load() if _MAGIC.match(data) else json.loads(data)
    except DumpError:
        raise
    except KeyError as error:
        code = error.args[0]
        raise DumpError(f"it has step {code!r}, which builds no plain data") from None
    except Exception as error:  # noqa: BLE001 - the file may hold anything
        raise DumpError(f"{type(error).__name__}: {error}"[:200]) from None
    if not isinstance(value, dict):
        raise DumpError("it is not from the flight recorder")
    return dict(_copied(value, [MOST_VALUES], 0))


def _copied(value: Any, left: list[int], depth: int) -> Any:
    """Copy without shared containers, which can expand beyond the memory. Raises DumpError above `left` values."""
    left[0] -= 1
    if left[0] < 0 or depth > DEPTH:
        raise DumpError("it holds too much")
    if isinstance(value, dict):
        return {str(key): _copied(its, left, depth + 1) for key, its in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(its, left, depth + 1) for its in value]
    if isinstance(value, str):
        return sys.intern(value[:LONGEST])
    if isinstance(value, int) and abs(value) >= 1 << 64:
        raise DumpError("it has a number that is too large")
    return value if isinstance(value, int | float) else None


class Recorders:
    """The dumps of many ranks."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        """File name by rank."""
        self._groups: dict[Key, GroupRecord] = {}

    def add(self, rank: int, name: str, data: bytes) -> None:
        """Add one rank's dump. Raises DumpError."""
        dump = loaded(data)
        try:
            read(rank, dump, self._groups)
        except Exception as error:  # noqa: BLE001 - the dump may hold anything
            raise DumpError(f"{type(error).__name__}: {error}"[:200]) from None
        self.names[rank] = name
        for group in self._groups.values():
            member = group.members.get(rank)
            if member is not None and len(member.calls) > KEPT:
                newest = sorted(member.calls)[-KEPT:]
                unfinished = [seq for seq, call in member.calls.items() if not call.done][:KEPT]
                member.calls = {seq: member.calls[seq] for seq in sorted({*newest, *unfinished})}

    def hits(self) -> Iterator[RuleHits]:
        """Yield the findings as rules that fired, the earliest first."""
        groups = [group for group in merged(self._groups, self.names) if len(group.ranks) > 1]
        causes = [(group, parting) for group in groups for parting in _apart(group)]
        if causes:
            group, parting = min(causes, key=lambda each: each[1].variants[0][0].created)
            since = parting.variants[0][0].created
            yield self._hit(_mismatch(group, parting), parting.variants[-1][1], since, group)
            return
        waits = [(group.waits[0], group) for group in groups if group.waits]
        if waits:
            wait, group = min(waits, key=_rank_of_wait)
            yield self._hit(_absent(group, wait), wait.missing or group.unasked, wait.since, group)

    def _hit(self, rule: Rule, ranks: tuple[int, ...], since: float, group: RecorderGroup) -> RuleHits:
        rank = min(part.rank for part in group.parts)
        done = next((part.completed for part in group.parts if part.rank == rank), None)
        text = f"rank {rank} called it at {_clock(since)} and has completed {'nothing' if not done else f'#{done}'}"
        line = FactLine(self.names.get(rank, ""), 1, text)
        head = Head(rank=ranks[0] if ranks else None)
        hits = RuleHits.of(rule, First(0, line, head, None))
        return replace(hits, heads=heads_of(ranks))


def _rank_of_wait(each: tuple[CollectiveWait, RecorderGroup]) -> tuple[int, float]:
    """Sort key of waits: with missing ranks first, then with ranks without a dump, then the others; each by time."""
    wait, group = each
    if wait.missing:
        return 0, wait.since
    return (1 if group.unasked else 2), wait.since


def _clock(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "n/a"


def _apart(group: RecorderGroup) -> Iterator[Divergence]:
    """Yield divergences except those in call sites."""
    return (parting for parting in group.divergences if parting.of != "call site")


def _named(group: RecorderGroup) -> str:
    if group.name == DEFAULT:
        return ""
    return f" of group {group.name}" + (f" ({group.desc})" if group.desc else "")


def _mismatch(group: RecorderGroup, parting: Divergence) -> Rule:
    calls = " and ".join(
        f"{call.what}{f' at {call.site}' if call.site else ''} ({spans_text('rank', ranks)})"
        for call, ranks in parting.variants[:4]
    )
    return _rule(
        "coll-mismatch",
        0,
        "cause",
        f"Ranks called different collectives as #{parting.seq}{_named(group)}: {calls}.",
        "Look at those lines for branches, unused parameters and last batches that differ between ranks.",
    )


def _absent(group: RecorderGroup, wait: CollectiveWait) -> Rule:
    site = f" at {wait.call.site}" if wait.call.site else ""
    call = f"#{wait.call.seq} {wait.call.what}{_named(group)}{site}"
    waiting = spans_text("rank", wait.ranks)
    wait_s = "waits" if len(wait.ranks) == 1 else "wait"
    remedy = "Find out what it did instead: its own log and its stack; a phase that only some ranks enter, a crash."
    if wait.missing:
        who = _capital(spans_text("rank", wait.missing))
        return _rule(
            "rank-absent", 1, "cause", f"{who} did not join {call}, in which {waiting} {wait_s}.", remedy
        )
    if group.unasked:
        who = spans_text("rank", group.unasked)
        text = f"{_capital(waiting)} {wait_s} in {call}; of {who} there is no dump."
        return _rule("rank-absent", 1, "cause", text, remedy)
    text = f"{_capital(waiting)} {wait_s} in {call}, which every rank has called."
    return _rule(
        "collective-stuck", 2, "hint", text, "Look at the network and the GPUs between these ranks."
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _rule(name: str, place: int, role: Role, text: str, remedy: str) -> Rule:
    severity: Severity = "error" if role == "cause" else "warning"
    return Rule(
        id=name,
        severity=severity,
        role=role,
        layer="torch",
        confidence="high",
        text=text,
        remedy=remedy,
        place=PLACE + 2 + place,
    )


def bounded(read_block: Callable[[], bytes]) -> bytes:
    """Read a whole dump. Raises DumpError if it is too large."""
    parts, size = list[bytes](), 0
    while block := read_block():
        size += len(block)
        if size > MOST_BYTES:
            raise DumpError(f"it has more than {MOST_BYTES >> 20} MiB")
        parts.append(block)
    return b"".join(parts)


def symptoms(hits: Iterator[RuleHits] | list[RuleHits], causes: bool) -> Iterator[RuleHits]:
    """Yield the hits, as symptoms if a log shows the cause."""
    for each in hits:
        rule: Mapping[str, Any] = {"role": "symptom"} if causes and each.rule.role == "cause" else {}
        yield replace(each, rule=replace(each.rule, **rule))
