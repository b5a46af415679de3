"""Compare two accounts in sections of rows, for text, JSON and screen. Pure."""

from __future__ import annotations

import math

from msgspec import Struct, structs

from ...presets.sanitize import clean_text
from ...presets.secrets import MASK, mask, mask_text
from ..run.launch_record import same_secret
from ..telemetry.quantity_text import value_text
from .account import CAUSE, NONE, SECTIONS, Account, Facts, Quantity, gaps_of

SAME, DIFFERS, ONLY_A, ONLY_B, UNKNOWN, VALUE = "same", "differs", "only A", "only B", "unknown", "value"
"""Kinds of rows. VALUE: progress and duration, which differ between any two runs. UNKNOWN: one side, or the evidence for
a difference, is not recorded, so the row is neither equal nor different."""
LEAST = 20
"""Minimum samples on each side for a difference of medians."""
LEAST_OF_PEAK = 5
SMALL = 0.02
"""Maximum relative difference of numbers that count as the same."""
SPREAD = 1.57
"""Factor of the interquartile range over the root of the samples: a box plot's notch, the 95 % interval of a median."""
RELATED = 5
"""Number of neighbouring samples that count as one, because they are running means."""
LONGEST = 2000
"""Maximum characters of a text."""


class Difference(Struct, frozen=True):
    """One property on both sides."""

    name: str
    a: str | None
    """Text of the value; None if unknown."""
    b: str | None
    kind: str
    note: str = ""
    """A short remark about the two values."""
    values: tuple[float | None, float | None] = (None, None)
    """The values of numbers in `unit`."""
    unit: str = ""
    ratio: float | None = None
    """B over A."""


class Section(Struct, frozen=True):
    """Rows about one subject."""

    name: str
    title: str
    rows: tuple[Difference, ...]
    hidden: int = 0
    """Number of omitted differences that only concern the launching terminal."""
    note: str = ""


class Comparison(Struct, frozen=True):
    a: Account
    b: Account
    sections: tuple[Section, ...]
    notes: tuple[str, ...]
    """Remarks about either side, a sentence each."""

    @property
    def equal(self) -> bool:
        """Whether no row differs. Unknown rows do not count."""
        return not any(
            row.kind in (DIFFERS, ONLY_A, ONLY_B) for section in self.sections for row in section.rows
        )


def compare(a: Account, b: Account, *, everything: bool = False) -> Comparison:
    """Compare both sides. `everything`: include equal rows and variables of the launching terminal."""
    sections = [_numbers(a, b)]
    for name, title in SECTIONS.items():
        rows = facts_rows(a.facts.get(name), b.facts.get(name))
        sections.append(Section(name, title, rows, note=_absent(name, a, b)))
    sections.insert(1 + list(SECTIONS).index("code"), _environment(a, b, everything))
    if not everything:
        sections = [_without_equal(section) for section in sections]
    notes = [f"A: {gap}" for gap in gaps_of(a)] + [f"B: {gap}" for gap in gaps_of(b)]
    return Comparison(a, b, tuple(sections), tuple(map(_shown, notes)))


def single(account: Account) -> Comparison:
    """Return the record of one run as a comparison with itself."""
    compared = compare(account, account, everything=True)
    notes = [note.removeprefix("A: ") for note in compared.notes if note.startswith("A: ")]
    return Comparison(account, account, compared.sections, tuple(notes))


def _without_equal(section: Section) -> Section:
    """Remove equal rows, except numbers, whose size is informative even if equal."""
    if section.name == "numbers":
        return section
    both = [row for row in section.rows if row.kind != SAME]
    return Section(section.name, section.title, tuple(both), section.hidden, section.note)


def _absent(name: str, a: Account, b: Account) -> str:
    sides = [side for side, account in (("A", a), ("B", b)) if not account.facts.get(name)]
    if name != "transports" or not sides:
        return ""
    return (
        f"{' and '.join(sides)}: no line of NCCL's logs says them (gloo writes none; NCCL_DEBUG=INFO does)"
    )


def facts_rows(a: Facts | None, b: Facts | None) -> tuple[Difference, ...]:
    """Return rows in the order of A, then names only in B. None: the side has no record of them."""
    names = dict.fromkeys((*(a or {}), *(b or {})))
    return tuple(_row(name, a, b) for name in names)


def _row(name: str, a: Facts | None, b: Facts | None) -> Difference:
    """Return the row of a name. A missing value is absent if that side lists all such names, else unknown."""
    before, after = (a or {}).get(name), (b or {}).get(name)
    shown = _shown(name)
    if before is None or after is None:
        lists = _lists(name, a if before is None else b)
        absent = NOT_THERE if lists else None
        left, right = (absent if text is None else _fact(name, text) for text in (before, after))
        return Difference(shown, left, right, _one_sided(before, lists))
    return Difference(shown, _fact(name, before), _fact(name, after), *_compared(before, after))


def _compared(before: str, after: str) -> tuple[str, str]:
    """Return kind and note for two values. Two masked values may differ."""
    if before != after:
        return DIFFERS, ""
    return (UNKNOWN, UNSAID) if MASK in before else (SAME, "")


def _one_sided(before: str | None, is_complete: bool) -> str:
    """Return the kind of a row that only one side has. `is_complete`: the other side has all its names."""
    if not is_complete:
        return UNKNOWN
    return ONLY_B if before is None else ONLY_A


NOT_THERE = "-"
UNSAID = "secret: whether they differ is not recorded"
_ALL = ("-", "argument ")
"""Prefixes of names that any recorded side lists completely."""
_FAMILIES = (
    "file ",
    "connections by ",
    "channels: ",
    "node ",
    "mesh size: ",
    "strategy: ",
    "mesh: ",
    "precision: ",
    "batch: ",
)
"""Prefixes of names that a side lists completely if it has at least one."""


def _lists(name: str, side: Facts | None) -> bool:
    if side is None or name.startswith(_ALL) or side.get(CAUSE) == NONE:
        return side is not None
    family = next((each for each in _FAMILIES if name.startswith(each)), None)
    return family is not None and any(each.startswith(family) for each in side)


def _fact(name: str, text: str) -> str:
    """Return a fact for display. An option's name can also make its value secret."""
    return _shown(mask(name, text) if name.startswith("-") else text)


def _shown(text: str) -> str:
    """Return a text for a terminal, without control characters and secrets."""
    return clean_text(mask_text(text), LONGEST)


_OF_TERMINAL = """
_ SHLVL PWD OLDPWD TERM TERMCAP COLUMNS LINES DISPLAY XAUTHORITY WINDOWID STY WINDOW COLORTERM LS_COLORS PS1 PS2
PROMPT_COMMAND MAIL GPG_TTY INVOCATION_ID JOURNAL_STREAM SYSTEMD_EXEC_PID DESKTOP_SESSION WAYLAND_DISPLAY NOTIFY_SOCKET
XDG_SESSION_* DBUS_* VSCODE_* KITTY_* ALACRITTY_* ITERM_* KONSOLE_* VTE_* SUDO_* GNOME_* SSH_* TMUX* HIST* LESS* TERM_*
WT_* WSL_* BYOBU_*
"""
"""Variables of the launching terminal; those with a star by the beginning of their names."""
_TERMINAL = frozenset(_OF_TERMINAL.split())
_TERMINALS = tuple(name.removesuffix("*") for name in _TERMINAL if name.endswith("*"))


def of_terminal(name: str) -> bool:
    """Whether a variable concerns only the launching terminal and not the training."""
    return name in _TERMINAL or name.startswith(_TERMINALS)


def _environment(a: Account, b: Account, everything: bool) -> Section:
    rows = [_variable(name, a, b) for name in sorted(a.env.keys() | b.env.keys())]
    if everything:
        return Section("environment", "environment", tuple(rows))
    kept = [row for row in rows if not of_terminal(row.name)]
    hidden = sum(row.kind != SAME for row in rows if of_terminal(row.name))
    if a.env_whole and b.env_whole:
        return Section("environment", "environment", tuple(kept), hidden)
    return Section(
        "environment",
        "environment",
        tuple(filter(_is_recorded, kept)),
        hidden,
        "compared are variables that both sides record",
    )


def _is_recorded(row: Difference) -> bool:
    """Whether both sides record the variable, or its difference is known."""
    return row.kind != UNKNOWN or (row.a is not None and row.b is not None)


def _variable(name: str, a: Account, b: Account) -> Difference:
    before, after = a.env.get(name), b.env.get(name)
    shown = clean_text(name, LONGEST)
    left, right = (_value(name, text, side) for text, side in ((before, a), (after, b)))
    if before is None or after is None:
        whole = a.env_whole if before is None else b.env_whole
        return Difference(shown, left, right, _one_sided(before, whole))
    if MASK not in (left, right) and MASK not in before and MASK not in after:
        return Difference(shown, left, right, SAME if before == after else DIFFERS)
    return _secret(name, before, after, a, b, Difference(shown, left, right, SAME))


def _secret(name: str, before: str, after: str, a: Account, b: Account, row: Difference) -> Difference:
    """Compare two secret values by their fingerprints, or by their masked texts."""
    same = same_secret(a.fingerprints.get(name, ""), b.fingerprints.get(name, ""))
    if same is None:
        same = _same_texts(before, after, row)
    kind, note = _SECRET_KINDS[same]
    return Difference(row.name, row.a, row.b, kind, note)


_SECRET_KINDS = {
    None: (UNKNOWN, UNSAID),
    True: (SAME, "secret: the same"),
    False: (DIFFERS, "secret: they differ"),
}


def _same_texts(before: str, after: str, row: Difference) -> bool | None:
    """Whether two values are the same, as far as masked texts show it; None if unknown."""
    if MASK not in before and MASK not in after:
        return before == after
    if MASK not in (before, after):
        return False if row.a != row.b else None
    shown = row.b if before == MASK else row.a
    differs = before != after and shown is not None and MASK not in shown
    return False if differs else None  # an unmasked value cannot equal a masked one


def _value(name: str, text: str | None, side: Account) -> str | None:
    if text is None:
        return "unset" if side.env_whole else None
    return clean_text(mask(name, text), LONGEST)


def _numbers(a: Account, b: Account) -> Section:
    left, right = ({each.name: each for each in side.quantities} for side in (a, b))
    names = dict.fromkeys((*left, *right))
    rows = tuple(_number(left.get(name), right.get(name)) for name in names)
    return Section("numbers", "numbers", rows, note="" if rows else "neither side has metrics")


def _number(a: Quantity | None, b: Quantity | None) -> Difference:
    about = a or b
    assert about is not None
    texts = [number_text(each, about.unit) for each in (a, b)]
    values = (a.value if a else None, b.value if b else None)
    name = clean_text(about.title, LONGEST)
    if a is None or b is None or a.value is None or b.value is None:
        kind = VALUE if about.name.startswith("last:") else UNKNOWN
        return Difference(name, texts[0], texts[1], kind, "", values, about.unit)
    kind, note = _verdict(a, b)
    return Difference(name, texts[0], texts[1], kind, note, values, about.unit, _ratio(a.value, b.value))


def number_text(quantity: Quantity | None, unit: str) -> str | None:
    """Return the text of a number; None without one."""
    return None if quantity is None else quantity.text or value_text(quantity.value, unit)


def _ratio(a: float, b: float) -> float | None:
    return b / a if a and math.isfinite(b / a) else None


def _verdict(a: Quantity, b: Quantity) -> tuple[str, str]:
    """Return kind and text for two numbers. A difference is reported only with enough samples."""
    if a.name.startswith("last:"):
        return VALUE, ""
    peak = a.name.startswith("peak:")
    fewest = min(a.samples, b.samples)
    if fewest < (LEAST_OF_PEAK if peak else LEAST):
        return UNKNOWN, f"too few samples to tell: {a.samples} and {b.samples}"
    left, right = a.value or 0.0, b.value or 0.0  # medians and peaks have values
    size, apart = max(abs(left), abs(right)), abs(left - right)
    if apart <= SMALL * size:
        return SAME, "same within 2 %" if apart else ""
    if not peak and apart <= math.hypot(_notch(a), _notch(b)):
        return SAME, "same within their spread"
    return DIFFERS, _advantage(a, right < left)


def _advantage(quantity: Quantity, is_less: bool) -> str:
    """Return the better side; "" if neither less nor more is better. `is_less`: B is less than A."""
    if not quantity.better:
        return ""
    return "B is better" if is_less == (quantity.better == "less") else "A is better"


def _notch(quantity: Quantity) -> float:
    """Return half the width of the median's confidence interval."""
    if quantity.middle is None:
        return math.inf
    return (
        SPREAD * (quantity.middle[1] - quantity.middle[0]) / math.sqrt(max(1.0, quantity.samples / RELATED))
    )


def ratio_text(ratio: float | None) -> str:
    """ "1.32x": B over A."""
    if ratio is None:
        return ""
    return f"{ratio:.2f}x" if 0.01 <= ratio < 100 else f"{ratio:.3g}x"


class ComparedSide(Struct, frozen=True):
    title: str
    run: str
    attempt: int | None
    state: str
    live: bool


class ComparedRuns(Struct, frozen=True):
    """The output of `diff`."""

    a: ComparedSide
    b: ComparedSide
    equal: bool
    sections: tuple[Section, ...]
    notes: tuple[str, ...]


def compared_runs(compared: Comparison) -> ComparedRuns:
    """Return the content of `diff --json`."""
    a, b = _side(compared.a), _side(compared.b)
    return ComparedRuns(a, b, compared.equal, compared.sections, compared.notes)


def _side(account: Account) -> ComparedSide:
    return ComparedSide(
        _shown(account.title), _shown(account.run), account.attempt, account.state, account.live
    )


def masked(account: Account) -> Account:
    """Return the account for other machines: without fingerprints, and with secrets masked in every text."""
    return structs.replace(
        account,
        facts={
            section: {name: mask_text(text) for name, text in rows.items()}
            for section, rows in account.facts.items()
        },
        env={name: mask(name, value) for name, value in account.env.items()},
        fingerprints={},
        gaps=tuple(map(mask_text, account.gaps)),
    )
