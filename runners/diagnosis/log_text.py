"""The lines of a log out of its bytes: encodings, ends of lines, progress bars, codes of terminals.

A line may hold several, parted by `PART`: what a progress bar wrote over itself, or a message of many lines.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator

BLOCK = 1 << 20
LONGEST = 1 << 16
"""Bytes of a line that are read."""
PART = "\r"
"""Between lines that have one number: they stand in one line of their file."""
SAMPLE = 8192
"""Bytes at the beginning of a file that show what it is."""
MOST_ZEROS = 4 << 30
"""Zeros at the beginning of a log: a file that was truncated while it was written has them."""

_CODES = re.compile(
    r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b\n]*+(?:\x07|\x1b\\)?|[PX^_][^\x1b\n]*+\x1b\\|[ -/]*+[0-~])"
    r"|\x9b[0-?]*+[ -/]*+[@-~]"
)
"""Of terminals: colours, cursor, titles (ECMA-48)."""
_WRITTEN_OUT = re.compile(
    r"(?:#033|\^\[|\\u001[bB]|\\x1[bB]|\\033|\\e)?\[(?:\d{1,3}(?:;\d{1,3}){0,8})?m"
    r"|(?:#033|\^\[|\\u001[bB]|\\x1[bB]|\\033)\[[0-9;]{0,20}[A-HJKSTfhl]"
)
"""Colours whose escape character was written as text (rsyslog's #033, `cat -v`'s ^[), or was lost on the way."""
_ELSE = bytes(range(8)) + bytes(range(14, 27)) + bytes(range(28, 32))
"""Bytes that no text holds; progress bars of Keras hold backspaces."""
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


PASTED = 300
"""Characters of a line that may be several which somebody pasted into one."""
SEARCHED = 4000
"""Characters of a line in which patterns are searched: the time of some grows with the square of its length."""
_RECORD = re.compile(
    r"(?<!\s)\s++(?=(?:(?:ERROR|WARNING|INFO|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./]+:\d+\]"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - [\w.]+ - [A-Z]{4,8} - ))"
)
"""Where a record of a logger begins within a line."""


_QUOTES = str.maketrans("“”‘’", "\"\"''")
"""Quotes that a text got where somebody pasted it."""


def straight(line: str) -> str:
    """A line with the quotes that programs write."""
    return line if line.isascii() else line.translate(_QUOTES)


def apart(line: str) -> str:
    """A line with PART between the records of a logger, where it has more than two of them."""
    records = _RECORD.split(line)
    return PART.join(records) if len(records) > 2 else line


def lines_in(read: Callable[[], bytes], check: Callable[[bytes], None]) -> Iterator[list[str]]:
    """Lines of a text that `read` gives in blocks, b"" at its end; `check` sees each block before it is used."""
    rest, skipping = b"", False
    for block in _blocks(read):
        check(block)
        if skipping:  # the rest of a line whose beginning is in `rest`
            at = block.find(b"\n")
            if at < 0:
                at = block.rfind(b"\r")
                if at < 0:
                    continue
                rest = rest[: LONGEST // 2]
            block, skipping = block[at:], False
        whole, newline, tail = block.rpartition(b"\n")
        if newline:
            yield decoded(rest + whole)
            rest = tail
        else:
            rest += tail
        if len(rest) > LONGEST:
            rest, skipping = _cut(rest)
    if rest:
        yield decoded(rest)


def _cut(line: bytes) -> tuple[bytes, bool]:
    """The beginning of a line that is too long, and whether the rest of it is of no use.

    Of one that a progress bar writes over and over it is not: an error may follow the bar.
    """
    at = line.rfind(b"\r")
    if at >= 0 and len(line) - at <= LONGEST // 2:
        return line[: LONGEST // 2] + line[at:], False
    return line[:LONGEST], True


def _blocks(read: Callable[[], bytes]) -> Iterator[bytes]:
    """What was read, as UTF-8, without the mark or the zeros at its beginning."""
    first, zeros = b"", 0
    while len(first) < SAMPLE and (block := read()):
        first += block
        if len(first) >= SAMPLE and not first.strip(b"\0") and zeros < MOST_ZEROS:
            zeros += len(first)
            first = b""
    codec = encoding_of(first)
    if codec is None:
        first = first.removeprefix(codecs.BOM_UTF8)
        yield (first.lstrip(b"\0") or first) if zeros or first.startswith(bytes(16)) else first
        while block := read():
            yield block
        return
    decoder = codecs.getincrementaldecoder(codec)("replace")
    block = first
    while block:
        yield decoder.decode(block).lstrip("\ufeff").encode("utf-8", "replace")
        block = read()


def encoding_of(sample: bytes) -> str | None:
    """UTF-16 or UTF-32, by its mark or by where its zeros are; None for all that has ASCII in single bytes."""
    for mark, codec in _MARKS:
        if sample.startswith(mark):
            return codec
    sample = sample[: min(SAMPLE, len(sample) // 2 * 2)]
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    if max(even, odd) <= 0.3 * len(sample) / 2 or max(even, odd) < 2 * min(even, odd):
        return None
    codec = "utf-16-be" if even > odd else "utf-16-le"
    text = sample.decode(codec, "replace")
    strange = sum(letter == "\ufffd" or (letter < " " and not letter.isspace()) for letter in text)
    return codec if strange <= len(text) // 20 else None


def decoded(data: bytes) -> list[str]:
    """Whole lines, each cut where it is too long, without codes of terminals."""
    data = data.replace(b"\r\n", b"\n")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\n".join(map(_guessed, data.split(b"\n")))
    if not data.isascii() or b"\x1b" in data or b"[0m" in data or b"[39m" in data or b"\x08" in data:
        text = without_codes(text)
    lines = text.split("\n")
    if len(data) > LONGEST and max(map(len, lines)) > LONGEST:
        return [line if len(line) <= LONGEST else _shortened(line) for line in lines]
    return lines


def _shortened(line: str) -> str:
    at = line.rfind(PART)
    if at >= 0 and len(line) - at <= LONGEST // 2:
        return line[: LONGEST // 2] + line[at:]
    return line[:LONGEST]


def _guessed(line: bytes) -> str:
    """A line as UTF-8, damaged or cut as it may be, else as Latin-1."""
    text = line.decode("utf-8", "replace")
    if "\ufffd" not in text or any(letter > "\x7f" and letter != "\ufffd" for letter in text):
        return text
    return line.decode("latin-1")


def without_codes(text: str) -> str:
    """A text without what moves or colours the cursor; what a backspace takes back begins a part of its own."""
    if "\x1b" in text or "\x9b" in text:
        text = _CODES.sub("", text)
    if "[0m" in text or "[39m" in text:
        text = _WRITTEN_OUT.sub("", text)
    if "\x08" in text:
        text = re.sub("\x08+", PART, text)
    return text.replace("\ufeff", "") if "\ufeff" in text else text


def is_binary(sample: bytes) -> bool:
    """Whether more than a few bytes are none of a text."""
    return len(sample) - len(sample.translate(None, _ELSE)) > len(sample) // 20
