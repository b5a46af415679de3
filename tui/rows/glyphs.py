"""States and values as glyphs, so that nothing depends on colour alone."""

from __future__ import annotations

from ...runners.model import Finding, RankPhase, RunPhase

OK, WARN, BAD, STALE = "●", "▲", "✖", "◌"
MISSING = "·"
"""A value that nobody has, or an old one."""

CURSOR, MARK = "›", "◆"

BUCKETS = 9
"""Steps of the heat ramp."""

_RAMP = "▁▁▂▃▄▅▆▇█"

_ASCII = str.maketrans(
    {
        OK: "*", WARN: "!", BAD: "x", STALE: "o", MISSING: ".", CURSOR: ">", MARK: "+", "…": "~", "│": "|",
        "─": "-", "→": ">", "×": "x", "–": "-", "█": "#", "░": "-", "▏": "|", "≈": "~",
    }
)  # fmt: skip

RANK: dict[RankPhase, tuple[str, str]] = {
    RankPhase.STARTING: (STALE, "warn"),
    RankPhase.RUNNING: (OK, "ok"),
    RankPhase.SUCCEEDED: (OK, "ok"),
    RankPhase.FAILED: (BAD, "bad"),
    RankPhase.KILLED: (BAD, "bad"),
    RankPhase.STOPPED: (STALE, "stale"),
    RankPhase.LOST: (BAD, "bad"),
}
"""Glyph and style of a rank's state."""

RUN: dict[RunPhase, tuple[str, str]] = {
    RunPhase.STARTING: (STALE, "warn"),
    RunPhase.RUNNING: (OK, "ok"),
    RunPhase.RESTARTING: (WARN, "warn"),
    RunPhase.STOPPING: (WARN, "warn"),
    RunPhase.SUCCEEDED: (OK, "ok"),
    RunPhase.FAILED: (BAD, "bad"),
    RunPhase.STOPPED: (STALE, "stale"),
    RunPhase.LOST: (BAD, "bad"),
}
"""Glyph and style of a run's state."""

_SEVERITY = {"info": (STALE, "stale"), "warn": (WARN, "warn"), "error": (BAD, "bad")}


def severity(finding: Finding) -> tuple[str, str]:
    """Glyph and style of a finding."""
    return _SEVERITY.get(finding.severity, (WARN, "warn"))


def run_phase(phase: str) -> tuple[str, str]:
    """Glyph and style of a run's state given as a word; a word of another vocabulary is shown as alive."""
    return RUN[RunPhase(phase)] if phase in {str(known) for known in RunPhase} else (OK, "ok")


def bucket(value: float) -> int:
    """The step of the heat ramp for 0 to 100; what lies outside is clamped."""
    return max(0, min(BUCKETS - 1, int(value * BUCKETS / 100)))


def heat(value: float | None, ascii_only: bool = False) -> tuple[str, str]:
    """Glyph and style of a heat cell, value 0 to 100; None is unknown.

    The height says the same as the colour ("bar0" to "bar8"); text beside it has "heat0" to "heat8".
    """
    if value is None:
        return MISSING, "stale"
    step = bucket(value)
    if ascii_only:
        return str(max(0, min(9, int(value / 10)))), f"bar{step}"
    return _RAMP[step], f"bar{step}"


def to_ascii(text: str) -> str:
    """The text with this module's glyphs replaced by plain ASCII ones."""
    return text if text.isascii() else text.translate(_ASCII)
