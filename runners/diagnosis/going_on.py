"""Tell from the lines after the newest error of a file whether its job went on, or came to an orderly end."""

from __future__ import annotations

import re
from collections import deque

COUNTER = re.compile(
    r"\b(?:global[_ ])?(?:step|iter|iteration|epoch|batch|episode)s?\b"
    r"(?:\(\w+\))?[\W_]{0,6}(?=\d)",
    re.IGNORECASE,
)
"""A word that counts progress, before its number."""
REPEATED = re.compile(r"\bretr(?:y|ies)|\battempt|\bwait|\btime[sd]? ?out|\bresum|\brestor", re.IGNORECASE)
"""Words of a line that counts tries, not progress."""
ROW = re.compile(r"\s*(?:[\w.+-]+\s+){7}")
"""A row of a table: at least seven columns before the last."""
PROCESS = re.compile(r"\bpid=(\d+)")
"""Ray's prefix of a line names the process that wrote it."""
NUMBER = re.compile(r"\d+")
NUMBERS = 4
"""Numbers after the counter's word that are compared: an epoch, a step in it, and their totals."""
SEARCHED = 300
GROWN = 2
"""Lines with a grown counter that show that the job went on. The first may be of a step in progress."""
GROWN_AFTER_TRACEBACK = 3
"""Such lines needed after a traceback that no logger wrote: lines of stdout may come late."""
ROWS = 4
"""Rows of a table that show it: a table has no word that tells what it counts."""
KEYS = 64
"""Maximum number of different progress lines that are followed."""
LINES = 5
"""Lines without an error before an orderly end."""
LAST = 8
"""Lines at the end of a file of which one reports the orderly end."""
ORDERLY = re.compile(
    r"(?!wandb:).{0,200}?(?:"
    r"\b(?:sav(?:ed|ing)|written|wrote)\b.{0,60}(?:model|checkpoint|ckpt|weights|results?|metrics|best|final|step)"
    r"|\b(?:training|benchmark|evaluation|fine-?tuning|pretraining|epochs?)\b.{0,30}\b(?:finished|completed?|done)\b"
    r"|\b(?:finished|completed) .{0,30}\b(?:training|benchmark|evaluation|fine-?tuning|pretraining|epochs?)\b"
    r"|\bsucceeded\W*$|\bexit(?: code)?:? 0\b|^\W*throughput\b.{0,30}[1-9]"
    r"|\bmax(?:imum)? number of (?:steps|epochs)\b|\bOut of bounds values : 0 OK)",
    re.IGNORECASE,
)
"""A line of a job that has done its work: what it saved, finished or measured."""
STOPPED = re.compile(
    r"shut(?:ting)? ?down|abort|\bkill|terminat|cancel+ed|\bcrash|core dump|emergency|exception|interrupt|gracefully"
    r"|\bstop(?:ped|ping)\b(?!.{0,30}early)|\bexiting\b|\bquit|giv(?:e|ing) up|\bfail|\bwandb: Synced",
    re.IGNORECASE,
)
"""Words after an error that make the end no orderly one."""
DECISIVE = re.compile(r"\bexit(?:ed)?(?: with)?(?: code)?:? 0\b|\b[Ff]inished train(?:ing)?\b")
"""An end after which a job that has made progress since its error was well."""
FOLLOWED = 2000
"""Lines after an error that are searched for signs that the job went on."""


class GoingOn:
    """What follows the newest error of a file."""

    def __init__(self, number: int) -> None:
        self.ranks: set[int] = set()
        """Known ranks of all errors of the file."""
        self.is_final = False
        """Whether an error ends the job whatever follows it: of a scheduler, a crash, a watchdog."""
        self.went_on_at = 0
        """Line that shows that the job went on; 0 if none does."""
        self._counters: dict[str, tuple[tuple[int, ...], int]] = {}
        """The newest numbers of each progress line, and how often they grew."""
        self._error_at = number
        self._uncaught: set[str] = set()
        """Processes whose exception may have ended them, "" for an unknown one."""
        self._stopped = False
        """Whether a line after the newest error tells that something was stopped."""
        self._last: deque[str] = deque(maxlen=LAST)

    def error(self, number: int, rank: int | None) -> None:
        """Start again: only what follows the newest error counts."""
        self.went_on_at, self._error_at, self._stopped = 0, number, False
        self._counters.clear()
        self._last.clear()
        if rank is not None:
            self.ranks.add(rank)

    def traceback(self, pid: str) -> None:
        """Note that the newest error is a traceback that no logger wrote. `pid`: of its writer, if known."""
        self._uncaught.add(pid)

    def caught(self, pid: str) -> None:
        """Note that the newest traceback of this process ended only a thread, or that the process goes on."""
        self._uncaught.discard(pid)

    def is_decided(self, number: int) -> bool:
        """Whether lines from this number on change nothing until the next error."""
        return self.went_on_at > 0 or number - self._error_at > FOLLOWED

    def line(self, line: str, number: int) -> None:
        """Read a line that reports no error."""
        if line.strip():
            self._last.append(line)
            self._stopped = self._stopped or STOPPED.search(line, 0, SEARCHED) is not None
        match = COUNTER.search(line, 0, SEARCHED)
        if match is not None and REPEATED.search(line, 0, SEARCHED) is None:
            if self._uncaught and (process := PROCESS.search(line, 0, match.start())) is not None:
                self.caught(process[1])
            needed = GROWN_AFTER_TRACEBACK if self._uncaught else GROWN
            self._count(line[: match.end()], line[match.end() : SEARCHED], needed, number)
        elif ROW.match(line):
            self._count(line[:0], line[:SEARCHED], ROWS, number)

    def _count(self, before: str, after: str, needed: int, number: int) -> None:
        """Count a progress line if its numbers have grown."""
        key = NUMBER.sub("#", before)
        numbers = tuple(int(each) for each in NUMBER.findall(after)[:NUMBERS])
        newest, times = self._counters.get(key, ((), 0))
        if numbers > newest and (key in self._counters or len(self._counters) < KEYS):
            self._counters[key] = numbers, times + 1
            if times + 1 >= needed:
                self.went_on_at = number

    def well_at(self, length: int) -> int:
        """Return the line that shows that the job went on or ended well; 0 if none does. `length`: of the file."""
        if self.is_final:
            return 0
        return self.went_on_at or (length if self._is_orderly(length) else 0)

    def _is_orderly(self, length: int) -> bool:
        """Whether the file ends with the results of the job, some lines after its newest error."""
        is_late = LINES <= length - self._error_at <= FOLLOWED
        if not is_late:
            return False
        if any(times >= GROWN for _, times in self._counters.values()):
            return any(map(DECISIVE.search, self._last))
        return not self._uncaught and not self._stopped and any(map(ORDERLY.match, self._last))
