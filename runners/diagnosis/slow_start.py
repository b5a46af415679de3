"""Report what ranks have been doing since the start if the first step and collective take long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ...presets.finding import Finding
from ..run.formatting import spans_text
from ..run.model import RankPhase, RunPhase
from ..run.pulse import Pulse
from ..run.under_way import stopping
from . import activity, first_step, starting
from .view import View

AFTER_S = 50.0
_REMEDIES = {
    "compiling": "keep the compiler's caches from run to run: TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR on a disk "
    "that stays",
    "importing modules": "install the environment on a local disk: imports read thousands of small files",
    "downloading": "download before the launch, and set HF_HUB_OFFLINE=1",
    "preparing a dataset": "prepare it before the launch, and load the result",
}
_REMEDY = "press w to see the stacks (in a shell: `distui dump RUN stacks`)"


def find(view: View) -> Iterable[Finding]:
    """Report a start without a step or collective for AFTER_S, unless another finding explains it."""
    attempt, state = view.attempt, view.state
    if attempt is None or view.now - attempt.began < AFTER_S or len(state.ranks) < 2:
        return ()
    if state.phase not in (RunPhase.STARTING, RunPhase.RUNNING) or stopping(state, view.now) is not None:
        return ()
    if first_step.has_step(state, attempt.began) or any(map(_has_called, view.history.values())):
        return ()
    return () if any(starting.find(view)) else _finding(view, attempt.began)


def _has_called(pulses: Sequence[Pulse]) -> bool:
    return any(group.enqueued for pulse in pulses[-1:] for group in pulse.groups)


def _finding(view: View, began: float) -> list[Finding]:
    groups: dict[str, list[int]] = {}
    for rank, pulses in sorted(view.history.items()):
        words = _words(pulses) if view.state.ranks[rank].phase is RankPhase.RUNNING else ""
        if words:
            groups.setdefault(words, []).append(rank)
    if not groups:
        return []
    parts = [f"{spans_text('rank', ranks)}: {words}" for words, ranks in groups.items()]
    ranks = tuple(sorted(rank for own in groups.values() for rank in own))
    return [
        Finding(
            "start-slow",
            "note",
            f"no step and no collective yet; {'; '.join(parts[:4])}",
            role="fact",
            **view.rank_fields(ranks),
            remedy=next((_REMEDIES[words] for words in groups if words in _REMEDIES), _REMEDY),
            since=began,
        )
    ]


def _words(pulses: Sequence[Pulse]) -> str:
    """Return what a rank has been doing in most of its kept pulses, so that the words seldom change."""
    words = Counter(_doing(pulse) for pulse in pulses if pulse.stack)
    return words.most_common(1)[0][0] if words else ""


def _doing(pulse: Pulse) -> str:
    words = first_step.doing_words(pulse.stack)
    if words:
        return words
    caller = None
    for site in reversed(activity.telling_frames(pulse.stack, 64)):
        if caller is not None and not site.name.startswith("<") and site.name != "main":
            return f"in {site.name}() (called at {caller.file.rpartition('/')[2]}:{caller.line})"
        caller = site
    return "in its script"
