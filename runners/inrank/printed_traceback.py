"""Read printed tracebacks line by line: complete, without a head, in a box, table or group, or after a prefix.

It is the only reader of tracebacks: for logs (diagnosis/exceptions.py) and for the last lines of a rank's stderr.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from .tracebacks import COMPILING, QUOTED, TAG, of_launcher, place, raised_in, shortened, untangled

BEGIN = "Traceback (most recent call last)"
BOXED = "❱"
"""Marks the source line in a frame that rich prints, even if the head of the box is missing."""
STARTS = (BEGIN, 'File "', BOXED)
"""Each line that begins a traceback contains at least one of these."""
IGNORED = "Exception ignored in"
"""Python prints this above a traceback that ends nothing."""
LINES, MESSAGE = 400, 12
"""Maximum number of lines of a traceback, and of its exception's message."""

_HEAD = re.compile(rf"{re.escape(BEGIN)}(?::|\s*[─━-]{{2}})")
_FRAME = re.compile(r'(?:> ?)?\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$')
_IN_BOX = re.compile(r"(?P<file>/?[^\s:]+\.\w+):(?P<line>\d+) in\b ?(?P<name>\S*)")
"""A frame in rich's format."""
_HEADLESS = re.compile(r'(?P<margin>(?:[|│┃>] ?)?)\s*(?:> )?File "[^"]+", line \d+(?:, in .+)?$')
_LINE = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: ?(?P<text>.*))?$")
_NAMED = re.compile(r"(?:[A-Za-z_]\w*\.)+[A-Z]\w*$|[A-Z][a-z0-9]+[A-Z]\w*$")
"""Names that only exceptions have, if they directly follow the frames."""
_GLUED = re.compile(
    r"\s*(?P<source>assert .{1,300}?)(?P<error>AssertionError)(?:[ :].*)?$"
    r"|\s*(?P<call>raise .{1,300}?\))(?P<other>(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?:: .*)?)$"
)
"""A source line and the exception in one line, as several ranks write them at the same time."""
_INDENTED = re.compile(r"\s+(?:[a-z_]\w*\.){0,8}[A-Z]\w*(?:Error|Exception): \S")
"""An exception's line with indentation, as in pasted text. No source line looks like that."""
_FLAT = re.compile(r'File "[^"]{1,400}", line \d+, in ')
_FOLD = re.compile(
    r' (?=File "[^"]{1,400}", line \d{1,9}, in )| (?=(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception): )'
)
"""Recognisable line ends of a traceback that was joined into one line."""
_STANDARD = re.compile(r"^<|[/\\]lib[/\\]python\d[\d.]*[/\\](?!(?:site|dist)-packages)")
"""Files of Python's own library."""
OF_RAY = re.compile(
    r"(?:\w+\.){0,4}(?:RayTaskError(?:\((?P<type>\w+)\): |: (?=ray::))|UnserializableException: )"
)
_TASK = re.compile(
    r"\bray::(?P<task>[\w.<>]{1,120}\(\))(?: \(pid=(?P<pid>\d{1,10})(?:, ip=(?P<ip>[\w.:-]{1,80}))?)?"
)
"""The method or function that a task of Ray runs, its process and node."""
_SWALLOWS = ("_run_finalizers", "_run_exitfuncs")
"""Functions of Python that print an exception of what they call, and go on."""
_BOX = re.compile(rf"[│┃|] {BOXED} +\d+ ")
_BORDER = re.compile(r"[╭╰┌└┏┗+][─━-]")
_RULES = ("|", "│", "┃")
"""Vertical borders of boxes and tables."""
NEXT = re.compile(
    r"\s*$|\[|[EWIF]\d{4} |\d{4}[-/]\d\d|\d\d:\d\d|Traceback|(?:ERROR|INFO|WARN(?:ING)?|DEBUG|CRITICAL|FATAL)\b"
    r"|(?:srun|slurmstepd|mpirun|wandb|torchrun|Exception ignored)\b|E0|={8}|-{8}|\+-"
    r"|During handling|The above exception|.*\b\d+%\||.*(?i:\b(?:step|iter|epoch)\b)\W{0,3}\d"
)
"""Lines that do not continue a message."""
_GOES_ON = (":", ",", ";", "(", "[", "{", "-", "...", "error(s) found.")
"""Ends of message lines that the next line continues."""
_CHAINS = (
    "another exception occurred",
    "direct cause of the following exception",
    f"Original {BEGIN}",
    "Tracebacks above this line can probably be ignored",  # fairseq
)
"""Text between two tracebacks that report the same failure."""
_GROUPS = re.compile(r"^(?:.*\.)?(?:Base)?ExceptionGroup$")
"""Exceptions that contain others, printed after them."""
_RANK = re.compile(r"Traceback \(most recent call last\): \(RANK (\d{1,7})\)")
"""The rank of an exception inside a CheckpointException."""
_ENGINE = re.compile(r"\[[\d: -]{8,25}(?:[DPE]P\d+ )*TP(\d{1,5})(?: [DPE]P\d+)*\] ")
"""The tensor-parallel rank in SGLang's prefix of a traceback."""
_OWN_RANK = re.compile(
    r"\bdid not receive grad for rank (\d{1,7})\b|^[Rr]ank (\d{1,7})(?:, (?:node|host|device)\b|:)"
    r"|^\[(\d{1,7})\](?:: params\[| is setting up NCCL)"
)
"""A message that names the rank that raised the exception."""
_SPAWNED = re.compile(r"-- Process (\d{1,7}) terminated")
"""The rank in the exception of torch.multiprocessing.spawn."""


class Step(Enum):
    """Relation of a line to the traceback."""

    NONE = "none"
    """It does not belong to the traceback."""
    OVER = "over"
    """It does not belong to the traceback, which is complete."""
    PART = "part"
    RAISED = "raised"
    """The exception's own line."""
    MORE = "more"
    """A further line of its message."""


class PrintedTraceback:
    """Parser of one traceback of one writer."""

    def __init__(self, text: str) -> None:
        """`text`: the first line without the writer's prefixes; see `begins`."""
        before, headed, _ = text.partition(BEGIN)
        self.headed = bool(headed)
        self.kind = ""
        """Type of its exception, as printed; "" while it is missing."""
        self.wrapped = ""
        """Type of the task's exception that Ray passes on. Its traceback follows."""
        self._task = ""
        """Method or function of that task."""
        self.task_pid = self.task_host = ""
        """Process of that task, and the address of its node."""
        self._sources = ("", "")
        """The newest source line below a frame, and the one before."""
        self._ends_in_source = False
        """Whether that source line is the newest line, which may be cut off."""
        self._frames: list[tuple[str, int, str]] = []
        self._caller = self._frames
        """Frames of the process that waited for Ray's task, which count if those of the task are missing."""
        self._message: list[str] = []
        self._has_message = False
        """Whether the exception's line has a colon: Python writes none if the message is empty."""
        self._count = 0
        self._boxed = _BORDER.search(before) is not None or BOXED in text
        self._indent = 0
        """Indentation of the whole traceback."""
        self._unindented = False
        """Whether the newest line is a frame without indentation."""
        self._sure = not headed or not before.strip()
        """Whether all lines have the same prefix as the first."""
        self._margin = before.removesuffix("Original ")
        if self._boxed:
            border = _BORDER.search(before)
            self._margin = before[: border.start()] if border is not None else ""
        elif before.endswith("Exception Group "):
            self._margin = before.removesuffix("Exception Group ").replace("+", "|")
        elif not headed and (match := _HEADLESS.match(text)) is not None:
            self._margin = match["margin"]
            self._frame(text[len(self._margin) :])

    def feed(self, text: str) -> Step:
        """Parse the writer's next line."""
        self._count += 1
        if self._count > LINES:
            return Step.OVER
        if self._boxed:
            return self._in_box(text)
        bare = self._bare(text)
        if bare is None:
            return Step.NONE
        if self.kind:
            return self._continued(bare)
        if self._is_of_frame(bare):
            return self._framed(bare)
        if (task := OF_RAY.match(bare)) is None and self._raised(bare):
            return Step.RAISED
        if task is not None:
            self.wrapped = task["type"] or self.wrapped or "a task of Ray"
            called = _TASK.search(bare)
            if called is not None:
                self._task = called["task"]
                self.task_pid, self.task_host = called["pid"] or "", called["ip"] or ""
            self._caller, self._frames = self._frames, []  # the frames of the task may follow
            return Step.PART
        return Step.NONE if self.headed else Step.OVER

    def _is_of_frame(self, line: str) -> bool:
        """Whether a line is a frame or the source code below it, which has no indentation if copied from a web page."""
        if not line.strip("^~ ") or line[0].isspace() or line[0] in ">│└├" or _FRAME.match(line):
            return True
        return self._unindented and raised_in(line) is None

    def _framed(self, line: str) -> Step:
        """Read a line that looks like a frame or source code."""
        if self._frames and _INDENTED.match(line) and self._raised(line.strip()):
            return Step.RAISED
        glued = _GLUED.match(line) if self._frames else None
        if glued is not None:
            self._frame(glued["source"] or glued["call"])
            self._raised(glued["error"] or glued["other"])
            return Step.RAISED
        self._frame(line)
        return Step.PART

    @property
    def text(self) -> str:
        """The exception's own line."""
        return f"{self.kind}: {self._message[0]}" if self._message else ""

    @property
    def has_more_lines(self) -> bool:
        """Whether the exception's message has more than one line so far."""
        return len(self._message) > 1

    @property
    def is_group(self) -> bool:
        """Whether the exception only contains others, whose tracebacks follow."""
        return _GROUPS.match(self.kind) is not None

    @property
    def is_swallowed(self) -> bool:
        """Whether Python only prints the exception, at the end of a process."""
        return bool(self._frames) and self._frames[0][2] in _SWALLOWS

    @property
    def is_of_launcher(self) -> bool:
        """Whether a launcher raised the exception because its ranks failed."""
        return of_launcher(self.kind, self.text) or of_launcher(self.kind, self.message())

    @property
    def is_evident(self) -> bool:
        """Whether its lines are certainly of a traceback, even without an exception."""
        return bool(self.headed or self.wrapped or self.place)

    @property
    def named_rank(self) -> int | None:
        """The rank that the message names as the one that raised the exception, or as the failed process."""
        message = self.message()
        named = _SPAWNED.match(message) or _OWN_RANK.search(message)
        return None if named is None else int(named[named.lastindex or 1])

    @property
    def place(self) -> str:
        """File and line of the innermost frame in the user's own code so far; "" without frames."""
        return place(self._frames)[0].rpartition("/")[2]

    def wraps(self, text: str) -> bool:
        """Whether the writer's next traceback, which begins with `text`, reports the same failure."""
        wrapped = self.kind.endswith("CheckpointException") and BEGIN in text
        return wrapped or chains(text)

    def where_cut_off(self) -> str:
        """Return the place where the traceback was cut off, as hints to its missing exception: ", at train.py:21, …"."""
        text = f", of {self.wrapped}" if self.wrapped else ""
        if not self.place:
            return text
        others = [frame for frame in self._frames if not _STANDARD.search(frame[0])]
        file, line, name = (others or self._frames)[-1]
        text += f", at {self.place}"
        folders = file.split("/")
        if f"{folders[-1]}:{line}" != self.place:
            text += f", in {name} ({'/'.join(folders[-2:])}:{line})"
        newest, before = self._sources
        source = before if before and self._ends_in_source else newest
        return f"{text}, at `{source[:QUOTED]}`" if source else text

    def message(self, lines: int = MESSAGE + 1) -> str:
        """Return the exception's message, once it was printed. `lines`: maximum number of its lines."""
        text = self._message[0] if self._message else ""
        if not text and not self._has_message:
            return self._asserted() or (f"in {self._task}" if self._task else "")
        for line in self._message[1:lines]:
            if text:
                text += " " if text.rstrip().endswith(_GOES_ON) else "\n"
            text += line.strip()
        return shortened(text)

    def _asserted(self) -> str:
        """Return the expression of an assertion without a message, which is in the source line above it."""
        source = self._sources[0]
        is_assertion = self.kind == "AssertionError" and source.startswith("assert ")
        return source[:QUOTED] if is_assertion else ""

    def raised(self, lines: int = MESSAGE + 1) -> dict[str, Any]:
        """Return the exception in the form of tracebacks.note_of, once it was printed. `lines`: as in `message`."""
        where, importing = place(self._frames)
        name = self.kind.rpartition(".")[2]
        compiling = name in COMPILING and bool(self._frames) and not self._frames[-1][0].startswith("<")
        return {
            "type": name,
            "text": self.message(lines),
            "where": where,
            "importing": importing or compiling,
        }

    def _bare(self, text: str) -> str | None:
        """Return a line without the traceback's prefix and indentation; None if it lacks that prefix."""
        if self._margin and not text.startswith(self._margin):
            if text.rstrip() == self._margin.rstrip():
                return ""
            if self._frames or self._sure:
                return None
            self._margin = ""  # the prefix of the first line only
        self._sure = True
        bare = text[len(self._margin) :]
        if self._margin.rstrip().endswith(_RULES) and bare.rstrip().endswith(_RULES):
            bare = bare.rstrip()[:-1].rstrip()  # a table
        if not self._frames:
            self._learn_indent(bare)
        return bare[self._indent :] if bare[: self._indent].isspace() else bare

    def _learn_indent(self, bare: str) -> None:
        """Learn the indentation of the whole traceback from its first frame."""
        frame = _FRAME.match(bare.lstrip())
        if frame is not None and frame["name"]:
            self._indent = max(0, len(bare) - len(bare.lstrip()) - 2)

    def _frame(self, text: str) -> None:
        bare = text.strip()
        match = _FRAME.match(bare)
        self._unindented = match is not None and text.startswith("File ")
        if match is not None:
            self._frames.append((match["file"], int(match["line"][:9]), match["name"] or "<module>"))
        is_source = match is None and not bare.startswith(('File "', "[Previous line repeated"))
        if is_source and bare.strip("^~ "):
            self._sources = bare, self._sources[0]
            self._ends_in_source = True
        elif bare:
            self._ends_in_source = False

    def _raised(self, line: str) -> bool:
        line = untangled(line.rstrip())
        match = _LINE.match(line)
        if match is None:
            return False
        kind = match["type"]
        if raised_in(line) is None and not (
            self._frames and match["text"] is not None and _NAMED.match(kind)
        ):
            return False
        self.kind, self._message, self._has_message = kind, [match["text"] or ""], match["text"] is not None
        self._frames = self._frames or self._caller
        return True

    def _continued(self, line: str) -> Step:
        if not self._has_message or len(self._message) > MESSAGE or NEXT.match(line):
            return Step.NONE
        self._message.append(line)
        return Step.MORE

    def _in_box(self, text: str) -> Step:
        inner = text[len(self._margin) :] if text.startswith(self._margin) else text
        if inner.startswith(_RULES):
            match = _IN_BOX.match(inner[1:].strip(" │┃|"))
            if match is not None:
                self._frames.append((match["file"], int(match["line"][:9]), match["name"] or "?"))
            return Step.PART
        if _BORDER.match(inner):
            return Step.PART
        if self.kind:
            return self._continued(inner)
        return Step.RAISED if self._raised(inner) else Step.NONE


def unfolded(line: str) -> list[str] | None:
    """Return the lines of a traceback that was joined into one line; None for any other line.

    Python and JSON strings have `\\n` between the lines, messages of clouds (SageMaker) a space.
    """
    if BEGIN not in line:
        return None
    if r"\n" in line:
        return line.replace(r"\"", '"').split(r"\n")
    before, _, after = line.partition(f"{BEGIN}: ")
    if _FLAT.match(after) is None:
        return None
    return [f"{before}{BEGIN}:", *_FOLD.split(" " + after)[1:]]


def begins(text: str) -> bool:
    """Whether a line begins a traceback: its head, or a frame if the head is missing."""
    return (
        _HEAD.search(text) is not None or _HEADLESS.match(text) is not None or _BOX.match(text) is not None
    )


def chains(text: str) -> bool:
    """Whether a line says that the traceback after it reports the same failure as the one before it."""
    return any(words in text for words in _CHAINS)


def rank_in_head(text: str, line: str) -> int | None:
    """Return the rank in the first line of a traceback. `text`: the line without the writer's prefixes."""
    named = _RANK.search(text) or _ENGINE.search(line)
    return None if named is None else int(named[1])


def last_raised(lines: Iterable[str]) -> dict[str, Any]:
    """Return the last exception in lines of a log, in the form of `note_of`; {} if none. Skips those of launchers."""
    note: dict[str, Any] = {}
    printed: PrintedTraceback | None = None
    for raw in lines:
        line = TAG.sub("", raw.rstrip())
        if begins(line) and (printed is None or BEGIN in line):
            printed = PrintedTraceback(line)
        elif printed is not None:
            step = printed.feed(line)
            if step is Step.RAISED and not printed.is_of_launcher:
                note = printed.raised()
            if step in (Step.RAISED, Step.OVER):
                printed = None
    return note


def unwrapped(raised: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the note of a DataLoader worker's exception if the rank's exception only carries it, else `raised`."""
    text = str(raised.get("text", ""))
    carried = last_raised(text.splitlines()) if "Original Traceback" in text else {}
    return {**raised, **carried, "importing": False} if carried else raised
