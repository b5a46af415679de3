"""What of a dump fits into one line of the link."""

from __future__ import annotations

import msgspec

from distui.runners.agent.commands import DUMP_BYTES, within
from distui.runners.run.model import CommandDone, Stamped
from distui.runners.run.wire.frames import MAX_LINE


def test_the_first_answers_stay_and_the_others_are_named() -> None:
    data = {str(rank): "x" * 100 for rank in range(8)}
    kept, left = within(data, 330)
    assert (list(kept), left) == (["0", "1", "2"], (3, 4, 5, 6, 7))
    assert within(data, 10_000) == (data, ())


def test_one_always_stays() -> None:
    assert within({"5": "x" * 100}, 10) == ({"5": "x" * 100}, ())


def test_what_json_escapes_counts_as_it_is_written() -> None:
    data = {str(rank): '"\n' * (100 << 10) for rank in range(64)}
    kept, left = within(data, DUMP_BYTES)
    assert left
    assert len(msgspec.json.encode(Stamped(0.0, CommandDone("x", True, "flight", kept)))) < MAX_LINE
