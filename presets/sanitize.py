"""Bytes from elsewhere → text that is safe on a terminal: the one cleaner for logs, names, presets and messages.

Escape sequences as in ECMA-48 (CSI, OSC, DCS, SOS, PM, APC, and the two-character ones), in 7-bit and
8-bit form.
"""

from __future__ import annotations

import json
import re
import shlex

WIDTH = 2000
"""Most characters of one line; the rest is `…` and the line's true length."""
LONGEST = 1 << 20
"""Most characters of a line that must not be cut: of a plan, a sentence, a path. More than an argument can have."""
TAB = 8
_ORDINARY = """
    a absent all allocations an and another argument arguments as asking at attempt autostop both call
    cancels cannot change channel check cluster compare copied done dump either elastic end ended equal
    every expected file files find findings finished for frames from gave give gives goes group has holds
    host hosts how however if in internal interrupted invalid is it its kernel launcher leaves line lines
    list live local managed microbatches more name neither nested no nobody node nodes none not nothing of
    on one only open others out port preset presets print process rank ranks read reading recovered refused
    rendezvous repeat restart restarted rule run runs saved schedule see send sequence set several sharding
    show signal since sizes slots so standard status stays stop stopped strategy take teardown that the
    there these they this those times too two unknown unrecognized unset unsupported until user wait what
    when where which with without world would wrap write you your
"""
OPENERS = frozenset(_ORDINARY.split())
"""Ordinary words with which our messages begin. Any other first word may be a name, of a host, a run, a file or a
program, and stays as it is written."""
_PERIOD = re.compile(r"(?<=[^\s./~])\.\Z")  # neither of "…" in dots nor of a path

# Strings (OSC, DCS, …) end before the next introducer, so that a flood of them costs linear time.
_CSI = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
_STRING = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)"
_OTHER = r"\x1b[ -/]*[0-~]?"  # also the introducer of a string that never ends: its text stays visible
ESCAPE = re.compile(f"{_CSI}|{_STRING}|{_OTHER}")
"""An escape sequence, or what is there of it."""
# NUL and its kin get a picture; what would turn, hide or break a line gets the replacement character.
_PICTURES: dict[int, str | None] = {code: chr(0x2400 + code) for code in range(0x20)}
_PICTURES |= {0x08: None, 0x0B: " ", 0x0C: " ", 0x7F: "\u2421"}
# What takes no room hides text in a name: blanks of no width, marks of annotations, and the tag letters.
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


def clean_line(raw: bytes, width: int = WIDTH, length: int | None = None) -> str:
    """One line, without its newline, as printable text of about `width` characters.

    Invalid UTF-8 becomes U+FFFD, escape sequences go, other controls become visible, tabs become blanks,
    and of a progress bar (`\\r`) the last state stays. A longer line ends with `…` and its length in
    bytes: `length` where the caller knows that `raw` is only a part of it. Markup such as `[red]` is text
    like any other: show the result as literal text.
    """
    shown, cut = _last_state(raw.rstrip(b"\r\n"), width)
    if not (shown.isascii() and shown.isprintable()):
        shown = ESCAPE.sub("", shown).expandtabs(TAB).translate(_PICTURES)
    whole = len(raw) if length is None else length
    if cut or len(shown) > width or whole > len(raw):
        return f"{shown[:width]}… ({whole:,} bytes)"
    return shown


def clean_lines(data: bytes, width: int = WIDTH) -> list[str]:
    """Every line of `data`; a newline at the end opens no further line."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [clean_line(line, width) for line in lines]


def clean_text(text: str, width: int = WIDTH) -> str:
    """`clean_line` for text that is already decoded: names, commands, messages from elsewhere."""
    return clean_line(text.replace("\n", " ").encode("utf-8", "replace"), width)


def clean_whole(text: str) -> str:
    """Text of several lines, each cleaned and none cut; a newline at its end stays."""
    return "\n".join(clean_text(line, LONGEST) for line in text.split("\n"))


def as_message(text: str) -> str:
    """A message in the product's one style: in sentence case, and a single line without a final period.

    Only one of OPENERS gets a capital: any other first word may be a name. Several lines keep their periods.
    """
    text = text.strip()
    first = text.split(maxsplit=1)[0].rstrip(",;.!?") if text else ""
    if first in OPENERS:
        text = text[0].upper() + text[1:]
    return text if "\n" in text else _PERIOD.sub("", text)


def escaped_json(line: str) -> str:
    """One line of JSON with everything that acts on a terminal as JSON's own escape; it means the same."""
    return _UNPRINTABLE.sub(lambda match: json.dumps(match[0])[1:-1], line)


def quoted(text: str) -> str:
    """A word for a POSIX shell; one that cannot be printed as it is, as bash reads it: $'\\x1b]0;'."""
    if text.isprintable():
        return shlex.quote(text)
    shown = "".join(char if char.isprintable() and char not in "\\'" else _escaped(char) for char in text)
    return f"$'{shown}'"


def _escaped(char: str) -> str:
    code = ord(char)
    if char in "\\'":
        return f"\\{char}"
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _last_state(raw: bytes, width: int) -> tuple[str, bool]:
    """The last part between `\\r` that shows anything, and whether more than enough of it was cut off."""
    enough = 8 * width + 256  # room for escape sequences and four bytes a character
    for _ in range(8):
        head, bar, part = raw.rpartition(b"\r")
        text = part[:enough].decode("utf-8", "replace")
        if not bar or ESCAPE.sub("", text).strip():
            return text, len(part) > enough
        raw = head
    return raw[:enough].decode("utf-8", "replace").replace("\r", " "), len(raw) > enough
