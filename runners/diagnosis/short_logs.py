"""Short logs without a sign of training: there any word of trouble counts, where no rule and no form of a line does.

People paste a few lines around what went wrong. In a whole log the same words are everyday, so nothing of this holds
once training is seen, or the log is longer.
"""

from __future__ import annotations

import re
from dataclasses import replace

from .error_lines import UNEXPLAINED, is_alive
from .heads import Head, stamp_of
from .nccl_facts import FactLine
from .prefixes import Writer
from .rules import First, Rule, RuleHits, shown

MOST_LINES = 200
"""Lines of all files together up to which they are such pieces."""
QUOTED = 300
"""Characters of the line that are quoted."""
PLACE = (1 << 21) + 1
"""Behind sentences of errors."""

_TROUBLE = re.compile(
    r"(?i:\b(?:errors?|failed|failure|fails?|crash(?:ed|es|ing)?|abort(?:ed|ing)?|killed|(?-i:terminated)|cannot|can't"
    r"|could ?n[o']t|unable to|denied|refused|unschedulable|evicted|oom|dead|corrupt(?:ed)?|unreachable|rejected"
    r"|unrecognized|preempted|\d+% full|stuck)\b)"
    r"|(?i:not (?:found|ready|respond|enough|supported)|no such|undefined symbol|timed out|time-?out\b"
    r"|out of memory|no space|connection lost|lost (?:connection|contact|node))"
    r"|\bSIG(?:TERM|KILL|ABRT|SEGV|BUS|INT)\b|Error\b|Exception\b|Failed[A-Z]\w+|\w(?:CannotRun|BackOff|NotEnough\w+)\b|\bdumped\b"
)
_EVERYDAY = re.compile(
    r"(?i:\berrors?\b[\"'\]]?\s*+(?:[:=]\s*+)?(?:\[\]|\W?-?(?:\d|none\b|null\b|false\b|n/a))"
    r"|\b0 (?:errors?|failures?|failed|dead)\b"
    r"|\b(?:failed|failures?|dead)\b[\"']?\s*[:=]\s*(?:0\b|\[\]|none\b|false\b)|\bno (?:errors?|failures?)\b"
    r"|without (?:an? )?errors?|fall(?:s|ing)? ?back|deprecat|ignor|retry|retries|skipp|dead ?lock"
    r"|successful|time-?out[\"']?\s*[:=]|going to \S+ instead|\d terminated\b|^usage:"
    r"|\busing\b|from scratch|\bwill (?:be|use|not|proceed|continue)\b|continu|proceed|default|\bimport\b"
    r"|unable to register|computation placer|-laio|-lcufile|collect2|^(?:mesg|stty|tput):|notebook|tokenizer)"
    r"|\btime +algbw\b|\b[A-Z]+(?:_[A-Z]+)*_(?:ERROR|TIMEOUT|FAIL\w*)\b"
)
"""Words of trouble that are a number, a setting, or that somebody has dealt with."""
_LESS = re.compile(r"(?i:warn|\bdebug\b|\binfo\b)|(?:^|[\[ ])[WI]\d{4} |\[[WI] |: [WI] \w+/")
"""Levels below that of errors, also in front of the sentence."""


class ShortLog:
    """Collects the first such line, as long as the log may be one of those."""

    def __init__(self, pasted: bool) -> None:
        """`pasted`: whether somebody gave the logs, not a run of distui's, of which more is known."""
        self.open = pasted
        """Whether it is short so far, and shows no training."""
        self._lines = 0
        self._first: First | None = None
        self._text = ""

    def asks(self, line: str, number: int) -> bool:
        """Whether a line that is none of NCCL's, by its number in its file, may tell of trouble: then `take` it."""
        self._lines += 1
        if max(self._lines, number) > MOST_LINES or is_alive(line):
            self.open, self._first = False, None
        return self.open and self._first is None and _TROUBLE.search(line) is not None

    def take(self, line: str, number: int, file: tuple[int, str], head: Head, wrote: Writer) -> None:
        """Keep the line if it does; `file`: its number and name."""
        if _TROUBLE.search(wrote.text) and not _EVERYDAY.search(wrote.text) and not _LESS.search(line):
            head = replace(head, rank=None)  # too little is sure to blame a rank
            self._first = First(file[0], FactLine(file[1], number, shown(line)), head, stamp_of(line))
            self._text = shown(wrote.text.strip())[:QUOTED]

    def entries(self) -> list[RuleHits]:
        """The line, as a rule that fired."""
        if self._first is None:
            return []
        rule = Rule(
            id=UNEXPLAINED,
            severity="error",
            layer="unknown",
            role="cause",
            confidence="low",
            place=PLACE,
            text=f"No rule knows this: {self._text}",
            remedy="Read the lines around it: it is the first that tells of trouble, and the log is cut off.",
        )
        return [RuleHits.of(rule, self._first)]
