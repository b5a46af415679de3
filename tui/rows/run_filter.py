"""The fields of the filter of the run list and of `ls`. Pure."""

from __future__ import annotations

from ...runners.diagnosis.status import HUNG
from ...runners.run.model import RunPhase
from .glyphs import or_na
from .list_filter import FilterField, FilterGrammar, Value
from .runs import RunEntry, share_done, words_of_state

STATES = tuple(dict.fromkeys((*map(str, RunPhase), "watched", HUNG, "live", "ended")))
"""Words that `state:` may contain parts of; `live` and `ended` match several states."""


def _state(run: RunEntry) -> tuple[str, ...]:
    return (words_of_state(run), "live" if run.live else "ended")


def _percent(run: RunEntry) -> tuple[Value, ...]:
    done = share_done(run)
    return (None if done is None else 100 * done,)


FIELDS: dict[str, FilterField] = {
    "state": FilterField("text", _state, "state:failed", STATES),
    "name": FilterField("text", lambda run: (run.name,), "name:night*"),
    "preset": FilterField("text", lambda run: (run.preset,), "preset:fsdp2"),
    "host": FilterField("text", lambda run: (run.host or "here",), "host:gpu1"),
    "id": FilterField("text", lambda run: (run.id,), "id:20261126*"),
    "tag": FilterField("text", lambda run: run.tags or ("",), "tag:good"),
    "note": FilterField("text", lambda run: (run.note,), "note:baseline"),
    "finding": FilterField("text", lambda run: (f"{run.problem} {run.finding}",), "finding:memory"),
    "exit": FilterField("number", lambda run: (run.exit_code,), "exit!=0"),
    "attempt": FilterField("number", lambda run: (run.attempt,), "attempt>1"),
    "ranks": FilterField("number", lambda run: (run.ranks,), "ranks>=8"),
    "nodes": FilterField("number", lambda run: (run.nodes,), "nodes>1"),
    "step": FilterField("number", lambda run: (run.step,), "step>1000"),
    "done": FilterField("percent", _percent, "done<50"),
    "age": FilterField("time", lambda run: (run.age_s,), "age<2d"),
    "took": FilterField("time", lambda run: (run.lasted_s,), "took>1h"),
    "ended": FilterField("time", lambda run: (run.ended_s,), "ended>30d"),
    "size": FilterField("size", lambda run: (run.size,), "size>1GB"),
}
"""Fields by name. `age` counts from a run's start, `ended` from its end."""

ANYWHERE = ("name", "preset", "host", "id", "finding", "exit", "ranks", "tag", "note")
"""Fields that a word without a field searches."""


def _words(run: RunEntry) -> list[str]:
    values = [or_na(value) for name in ANYWHERE for value in FIELDS[name].read(run)]
    return [words_of_state(run), *values]


RUNS: FilterGrammar[RunEntry] = FilterGrammar(FIELDS, _words, {"tags": "tag"})
