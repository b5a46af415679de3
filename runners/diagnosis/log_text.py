"""Split the bytes of a log into lines, with all encodings, line ends, progress bars and terminal codes.

A line may have several parts with `PART` between them: overwritten states of a progress bar, or the lines of a message.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from typing import AnyStr

BLOCK = 1 << 20
LONGEST = 1 << 16
"""Maximum number of bytes read from a line."""
PART = "\r"
"""Separates parts with one line number: they are in one line of the file."""
SAMPLE = 8192
"""Number of bytes at the beginning of a file that show its type."""
MOST_ZEROS = 4 << 30
"""Maximum number of zero bytes skipped at the beginning: a log that was truncated during writing has them."""

_CODES = re.compile(
    r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b\n]*+(?:\x07|\x1b\\)?|[PX^_][^\x1b\n]*+\x1b\\|[ -/]*+[0-~])"
    r"|\x9b[0-?]*+[ -/]*+[@-~]"
)
"""Terminal codes: colours, cursor, titles (ECMA-48)."""
_WRITTEN_OUT = re.compile(
    r"(?:#033|\^\[|\\u001[bB]|\\x1[bB]|\\033|\\e)?\[(?:\d{1,3}(?:;\d{1,3}){0,8})?m"
    r"|(?:#033|\^\[|\\u001[bB]|\\x1[bB]|\\033)\[[0-9;]{0,20}[A-HJKSTfhl]"
)
"""Colours whose escape character was written as text (rsyslog's #033, `cat -v`'s ^[) or was lost."""
_ELSE = bytes(range(8)) + bytes(range(14, 27)) + bytes(range(28, 32))
"""Bytes that no text contains. Keras' progress bars contain backspaces."""
HOLE = re.compile(rb"\0{32,}")
"""Zero bytes that a file system leaves in a file after a crash, instead of lines that were not written yet."""
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


PASTED = 300
"""Characters above which a line may be several lines pasted into one."""
SEARCHED = 4000
"""Maximum characters of a line that patterns search: some take quadratic time."""
_RECORD = re.compile(
    r"(?<!\s)\s++(?=(?:(?:ERROR|WARNING|INFO|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./]+:\d+\]"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - [\w.]+ - [A-Z]{4,8} - ))"
)
"""The start of a logger's record within a line."""


_QUOTES = str.maketrans("“”‘’", "\"\"''")
"""Typographic quotes that pasting adds to a text."""


def straight(line: str) -> str:
    """Return a line with plain quotes."""
    return line if line.isascii() else line.translate(_QUOTES)


def apart(line: str) -> str:
    """Return a line with PART between a logger's records if it has more than two."""
    records = _RECORD.split(line)
    return PART.join(records) if len(records) > 2 else line


def lines_in(read: Callable[[], bytes], check: Callable[[bytes], None]) -> Iterator[list[str]]:
    """Yield the lines of a text. `read` returns its blocks, b"" at the end; `check` sees each block before its use."""
    rest, skipping = b"", False
    for block in _blocks(read):
        check(block)
        if b"\0" in block:
            block = HOLE.sub(PART.encode(), block)
        if skipping:  # the rest of a long line whose beginning is in `rest`
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
            rest, skipping = _shortened(rest, b"\r")
    if rest:
        yield decoded(rest)


def _shortened(line: AnyStr, part: AnyStr) -> tuple[AnyStr, bool]:
    """Return the beginning of a line that is too long, and whether its rest can be skipped.

    The rest of a progress bar's line, after its last `part`, is kept: an error may follow the bar.
    """
    at = line.rfind(part)
    if at >= 0 and len(line) - at <= LONGEST // 2:
        return line[: LONGEST // 2] + line[at:], False
    return line[:LONGEST], True


def _blocks(read: Callable[[], bytes]) -> Iterator[bytes]:
    """Yield the blocks as UTF-8, without the byte order mark and the zeros at the beginning."""
    block, has_zeros = _beginning(read)
    codec = encoding_of(block)
    if codec is None:
        block = block.removeprefix(codecs.BOM_UTF8)
        if has_zeros or block.startswith(bytes(16)):
            block = block.lstrip(b"\0") or block
        while block:
            yield block
            block = read()
        return
    decoder = codecs.getincrementaldecoder(codec)("replace")
    while block:
        yield decoder.decode(block).lstrip("\ufeff").encode("utf-8", "replace")
        block = read()


def _beginning(read: Callable[[], bytes]) -> tuple[bytes, bool]:
    """Return at least SAMPLE bytes if there are so many, and whether blocks of zeros before them were skipped."""
    first, zeros = b"", 0
    while len(first) < SAMPLE and (block := read()):
        first += block
        if len(first) >= SAMPLE and not first.strip(b"\0") and zeros < MOST_ZEROS:
            zeros += len(first)
            first = b""
    return first, zeros > 0


def encoding_of(sample: bytes) -> str | None:
    """Return UTF-16 or UTF-32 by byte order mark or positions of zeros; None if ASCII characters are single bytes."""
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
    """Return complete lines without terminal codes, long ones truncated."""
    data = data.replace(b"\r\n", b"\n")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\n".join(map(_guessed, data.split(b"\n")))
    lines = without_codes(text).split("\n")
    if len(data) <= LONGEST or max(map(len, lines)) <= LONGEST:
        return lines
    return [line if len(line) <= LONGEST else _shortened(line, PART)[0] for line in lines]


def _guessed(line: bytes) -> str:
    """Decode a line as UTF-8, even if damaged or truncated, else as Latin-1."""
    text = line.decode("utf-8", "replace")
    if "\ufffd" not in text or any(letter > "\x7f" and letter != "\ufffd" for letter in text):
        return text
    return line.decode("latin-1")


def without_codes(text: str) -> str:
    """Return a text without cursor and colour codes. Backspaces begin a new part."""
    if "\x1b" in text or "\x9b" in text:
        text = _CODES.sub("", text)
    if "[0m" in text or "[39m" in text:
        text = _WRITTEN_OUT.sub("", text)
    if "\x08" in text:
        text = re.sub("\x08+", PART, text)
    return text.replace("\ufeff", "") if "\ufeff" in text else text


def is_binary(sample: bytes) -> bool:
    """Whether more than a few bytes do not belong in a text. Holes may be in any file."""
    if sample and not (sample := HOLE.sub(b"", sample)):
        return True
    return len(sample) - len(sample.translate(None, _ELSE)) > len(sample) // 20
