"""Additions to `--help` and the man pages of verbs: headings, examples and exit codes. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from .verb_table import GROUPS, VERBS

MEANINGS = {
    0: "done",
    1: "the run, the command or the check failed",
    2: "wrong usage, or something needed is missing",
    3: "no such run",
    4: "agent or node unreachable",
    5: "a command was sent but its answer was lost (`distui status` shows its effect)",
    6: "`wait`: the run is lost",
    124: "`wait --timeout` expired",
    130: "interrupted",
    141: "stdout was closed",
}
"""Every exit code."""

EXAMPLES = {
    "demo": "a small training as a demo",
    "launch ddp -- train.py --lr 1e-3": "start a script on all GPUs of this machine",
    "launch fsdp2 --hosts gpu1,gpu2 -- train.py": "on two machines, via ssh",
    "attach night": "open the cockpit on a run; q leaves it running",
    "diagnose night": "why it hangs, or failed",
    "nccl night INFO --for 30": "NCCL_DEBUG=INFO for 30 s, without a restart",
}
"""Command lines for beginners, without `distui`."""
LONGEST = 52
"""Columns of an example; the description of a longer one is shifted to the right."""


def exit_codes(verb: str) -> dict[int, str]:
    """Return the exit codes of a verb, and their meanings."""
    exits = VERBS[verb].exits
    codes = {0, 2, *exits.codes}
    meanings = MEANINGS | ({1: exits.failure} if exits.failure else {})
    return {code: text for code, text in meanings.items() if code in codes}


def guide_text(verb: str) -> str:
    """Return the examples and the exit codes of a verb, for the end of its `--help`."""
    codes = [f"  {code:<4} {text}" for code, text in exit_codes(verb).items()]
    return "\n".join([*_examples(VERBS[verb].examples), "", "exit codes:", *codes, ""])


def overview() -> str:
    """Return the verbs under their headings, and examples, for `distui --help`."""
    lines: list[str] = []
    for heading, verbs in GROUPS.items():
        lines += [f"{heading}:", *(f"  {name:<11} {verb.about}" for name, verb in verbs.items()), ""]
    return "\n".join([*lines, *_examples(EXAMPLES)])


def _examples(examples: Mapping[str, str]) -> list[str]:
    width = min(max(map(len, examples)), LONGEST)
    return ["examples:", *(f"  distui {line:<{width}}  {about}" for line, about in examples.items())]
