"""Convert foreign bytes to text that is safe on a terminal: for logs, names, presets and messages.

Removes the escape sequences of ECMA-48 (CSI, OSC, DCS, SOS, PM, APC, and two-character sequences), in 7-bit and 8-bit
form.
"""

from __future__ import annotations

import json
import re
import shlex

WIDTH = 2000
"""Longest line, in characters. `…` and the true length replace the rest."""
LONGEST = 1 << 20
"""Longest line, in characters, if it must stay complete (plan, sentence, path). No argument is longer."""
TAB = 8
_ORDINARY = """
    a absent all allocations an and another argument arguments as asking at attempt autostop back both call
    cancels cannot change channel check cluster compare copied done dump either elastic end ended equal
    every expected file files find findings finished for frames from gave give gives goes group has holds
    host hosts how however if in internal interrupted invalid is it its kernel launcher leaves line lines
    list live local managed microbatches more name neither nested no nobody node nodes none not nothing of
    on one only open others out port preset presets print process rank ranks read reading recovered refused
    rendezvous repeat restart restarted rule run runs saved schedule script see send sequence set several sharding
    show signal since sizes slots so standard status stays stop stopped strategy take teardown that the
    there these they this those times too two unknown unrecognized unset unsupported until user wait what
    when where which with without world would wrap write you your
"""
OPENERS = frozenset(_ORDINARY.split())
"""Ordinary first words of our messages.

Any other first word may be a name (host, run, file, program) and keeps its case.
"""
_PERIOD = re.compile(r"(?<=[^\s./~])\.\Z")  # no period of "…" in dots, and none of a path

# Strings (OSC, DCS, …) end before the next introducer, so that a flood of them costs linear time.
_CSI = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
_STRING = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)"
_OTHER = r"\x1b[ -/]*[0-~]?"  # also the introducer of an unterminated string, whose text stays visible
ESCAPE = re.compile(f"{_CSI}|{_STRING}|{_OTHER}")
"""An escape sequence, or its beginning."""
# NUL and its kin get a picture. Characters that turn, hide or break a line become U+FFFD.
_PICTURES: dict[int, str | None] = {code: chr(0x2400 + code) for code in range(0x20)}
_PICTURES |= {0x08: None, 0x0B: " ", 0x0C: " ", 0x7F: "\u2421"}
# Zero-width characters can hide text in a name: blanks, annotation marks, tag letters.
_PICTURES |= dict.fromkeys(
    (
        *range(0x80, 0xA0),
        0x061C,
        0x180E,
        0x200B,
        0x200E,
        0x200F,
        *range(0x2028, 0x202F),
        *range(0x2060, 0x2070),
        0xFEFF,
        *range(0xFFF9, 0xFFFC),
        *range(0xE0000, 0xE0080),
    ),
    "\ufffd",
)
_UNPRINTABLE = re.compile(f"[{re.escape(''.join(map(chr, _PICTURES)))}]")


def clean_line(raw: bytes, width: int = WIDTH) -> str:
    """Return one line as printable text of about `width` characters, without its newline.

    Invalid UTF-8 becomes U+FFFD, escape sequences are removed, other controls become visible, and tabs become blanks. A
    progress bar (`\\r`) keeps its last state. A longer line ends with `…` and its length in bytes. Markup
    such as `[red]` stays: show the result as literal text.
    """
    shown, cut = _last_state(raw.rstrip(b"\r\n"), width)
    if not (shown.isascii() and shown.isprintable()):
        shown = ESCAPE.sub("", shown).expandtabs(TAB).translate(_PICTURES)
    if cut or len(shown) > width:
        return f"{shown[:width]}… ({len(raw):,} bytes)"
    return shown


def clean_lines(data: bytes, width: int = WIDTH) -> list[str]:
    """Clean every line of `data`. A final newline starts no line."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [clean_line(line, width) for line in lines]


def clean_text(text: str, width: int = WIDTH) -> str:
    """Apply `clean_line` to decoded text: names, commands, foreign messages."""
    return clean_line(text.replace("\n", " ").encode("utf-8", "replace"), width)


def clean_whole(text: str) -> str:
    """Clean each line of a text without cutting. A final newline stays."""
    return "\n".join(clean_text(line, LONGEST) for line in text.split("\n"))


def as_message(text: str) -> str:
    """Return a message in the product's style: sentence case, and no final period on a single line.

    Only words of OPENERS get a capital: any other first word may be a name. Several lines keep their periods.
    """
    text = text.strip()
    first = text.split(maxsplit=1)[0].rstrip(",;.!?") if text else ""
    if first in OPENERS:
        text = text[0].upper() + text[1:]
    return text if "\n" in text else _PERIOD.sub("", text)


def escaped_json(line: str) -> str:
    """Escape terminal control characters in a line of JSON. The value stays equal."""
    return _UNPRINTABLE.sub(lambda match: json.dumps(match[0])[1:-1], line)


def quoted(text: str) -> str:
    """Quote a word for a POSIX shell, or for bash if it is not printable: $'\\x1b]0;'."""
    if text.isprintable():
        return shlex.quote(text)
    shown = "".join(char if char.isprintable() and char not in "\\'" else _escaped(char) for char in text)
    return f"$'{shown}'"


def _escaped(char: str) -> str:
    code = ord(char)
    if char in "\\'":
        return f"\\{char}"
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _last_state(raw: bytes, width: int) -> tuple[str, bool]:
    """Return the last visible part between `\\r`, and True if more than enough of it was cut off."""
    enough = 8 * width + 256  # room for escape sequences and four bytes per character
    for _ in range(8):
        head, bar, part = raw.rpartition(b"\r")
        text = part[:enough].decode("utf-8", "replace")
        if not bar or ESCAPE.sub("", text).strip():
            return text, len(part) > enough
        raw = head
    return raw[:enough].decode("utf-8", "replace").replace("\r", " "), len(raw) > enough


def sentence(text: str) -> str:
    """Add a full stop, unless the message ends with other punctuation."""
    return text if text.endswith((".", "?", "!")) else f"{text}."
