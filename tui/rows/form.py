"""The launch screen as rows: the list of presets, the form, the plan, and SkyPilot's candidate nodes. Pure."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from rich.cells import cell_len

from ...presets import model, nccl
from ...presets.estimate.memory import format_for
from ...presets.estimate.workload import FORMATS
from ...presets.finding import Finding
from ...presets.model import Loaded, help_of
from ...presets.request import FORM_OPTIONS, of_form
from ...presets.secrets import mask
from ...runners.launch.launch_form import LaunchForm, LaunchPreview
from ...runners.launch.preset_library import PresetEntry
from ...runners.launch.words import shell_words
from ...runners.run.formatting import NA
from . import glyphs
from .glyphs import Cell, Cells, Row, clip, counted, fit, kept, labelled, row_width, table, wrap

if TYPE_CHECKING:
    from ...runners.hub.sky_process import Candidate

_MARKS = {"yours": "y", "project": "p"}


def matching(entries: Sequence[PresetEntry], words: str) -> list[PresetEntry]:
    """Return the presets with every word, in any order: in name, title, summary, strategy or origin."""
    wanted = words.lower().split()
    return [entry for entry in entries if all(word in _text(entry) for word in wanted)]


def best_match(entries: Sequence[PresetEntry], words: str, kept: str) -> str:
    """Return the preset for the cursor: one with exactly this name, one whose name begins so, `kept`, or the first."""
    names = [entry.name for entry in matching(entries, words)]
    word = words.strip().lower()
    exact = [name for name in names if name.lower() == word]
    begun = [name for name in names if word and name.lower().startswith(word)]
    if exact or (begun and kept not in begun):
        return (exact or begun)[0]
    return kept


def _text(item: PresetEntry) -> str:
    return f"{item.name} {item.title} {item.summary} {item.strategy} {item.origin} {item.problem}".lower()


def preset_rows(entries: Sequence[PresetEntry], width: int) -> list[Row]:
    """Return one row per preset: its name, and a mark if it does not ship with distui or does not load."""
    rows: list[Row] = []
    for entry in entries:
        name = fit(entry.name, max(4, width - 2))
        if entry.problem:
            rows.append(((f"{name} ", "stale"), (glyphs.BAD, "bad")))
        else:
            rows.append(((f"{name} ", "text"), (_MARKS.get(entry.origin, " "), "accent")))
    return rows


def why_rows(entry: PresetEntry | None, width: int, height: int) -> list[Row]:
    """Return when to use the selected preset, or why it cannot be used."""
    if entry is None:
        return [((" no match: esc clears the search", "warn"),)]
    if entry.problem:
        return wrap(entry.problem, width - 1, first=f" {glyphs.BAD} ", then=" ")[:height]
    return wrap(entry.summary, width - 1, first=" ")[:height]


def title_row(entry: PresetEntry | None, width: int) -> Row:
    """Return the title of the screen and of the selected preset; also its name if there is room."""
    head: Row = ((" distui · new run", "head"),)
    if entry is None:
        return head
    origin = {"yours": " (your own)", "project": " (of this project)"}.get(entry.origin, "")
    long = f" · {entry.name} · {entry.title}{origin}" if entry.title else f" · {entry.name}{origin}"
    short = f" · {entry.title}{origin}" if entry.title else long
    return clip((*head, (long if row_width(head) + cell_len(long) <= width else short, "text")), width)


SET = "set."
"""Prefix of a preset field's path in the name of its row."""

NAMED = "nccl-preset."
"""Prefix of a named NCCL setting in the name of its row."""

KIND = f"{SET}strategy.kind"
"""The choice that determines which other fields exist."""

_HIDDEN = ("title", "summary", "topology.nnodes", "topology.nnodes_min", "topology.nproc_per_node")
"""Fields that are set elsewhere: when saving, and by the form's own nodes and ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One row of the form."""

    name: str
    """A field of LaunchForm; or SET and a path; or NAMED and a name."""
    label: str
    table: str
    """The heading above it."""
    help: str
    value: str = ""
    """The value that applies while the field is empty."""
    choices: tuple[str, ...] = ()
    """() for free text."""
    check: bool = False
    """Whether the field is a checkbox."""


Typed = Mapping[str, str]
"""Maps the name of a field to its typed or chosen text; a field without one is missing or ""."""

QUOTED = "quoted as in a shell"
OF_SKY = "For nodes that SkyPilot brings."
ESTIMATE = "Only for the memory estimate."


def _of_option(name: str, heading: str, more: str = "") -> tuple[str, str, str, str, str]:
    """Return a field that the command line also has as an option."""
    option = of_form(name)
    assert option is not None, name
    text = option.sentences if not option.repeat else f"{option.sentences} Several are {QUOTED}."
    return name, option.label, heading, option.example, f"{text} {more}".rstrip()


_OWN = (
    ("script", "script", "run", "e.g. train.py", "The training script, its path from here."),
    ("args", "arguments", "run", "e.g. --steps 1000", f"Of the script, {QUOTED}: --steps 1000 --lr 3e-4."),
    ("nproc", "ranks", "run", "", ""),
    _of_option("name", "run"),
    _of_option("env", "run"),
    ("nccl", "NCCL_DEBUG", "run", "", "How much NCCL logs; it can be changed while the run goes on."),
    _of_option("place", "where", "hosts A,B,…: hosts of your own, by ssh."),
    _of_option("nodes", "where", "Above 1 it needs a place."),
    _of_option("gpus", "where", OF_SKY),
    _of_option("cpus", "where", OF_SKY),
    ("params", "model", "memory", "e.g. 7B", f"Parameters of the model: 350M, 7B. {ESTIMATE}"),
    ("hardware", "GPU", "memory", "e.g. 8xA100-80GB", f"The GPUs of a node: COUNTxNAME. {ESTIMATE}"),
    ("seq", "sequence", "memory", "2048", f"Positions of a sequence. {ESTIMATE}"),
    ("recompute", "recompute", "memory", "false", f"Activation checkpointing of every layer. {ESTIMATE}"),
    ("format", "formats", "memory", "", ""),
)
"""Name, label, heading, placeholder, help."""

OPTION = "option."
"""Prefix of the field of `Request` in the name of an option's row."""

FURTHER = Field(
    name="further",
    label="--set",
    table="further",
    value="e.g. sky.key=value",
    help="Further fields as `--set` takes them, quoted as in a shell: keys of env, nccl, deepspeed, accelerate, sky.",
)


def fields(loaded: Loaded | None, kind: str = "", hardware: str = "") -> list[Field]:
    """Return every field for a preset; None means that the preset cannot be loaded.

    `kind` is its strategy before the user chose another; `hardware` the GPUs of this machine, if known.
    """
    options = list(_options())
    listed = [_own(row, loaded, hardware) for row in _OWN]
    listed += (each for each in options if each.table == "run")
    listed.sort(key=lambda each: ("run", "where", "memory").index(each.table))
    if loaded is not None:
        listed += (
            replace(each, value=kind) if kind and each.name == KIND else each for each in _of_preset(loaded)
        )
    return [*listed, FURTHER, *(each for each in options if each.table != "run"), *_named()]


def _own(row: tuple[str, str, str, str, str], loaded: Loaded | None, hardware: str) -> Field:
    name, label, table, value, text = row
    choices: tuple[str, ...] = ()
    topology = None if loaded is None else loaded.preset.topology
    match name:
        case "nproc":
            value = "auto" if topology is None else str(topology.nproc_per_node)
            text = help_of("topology.nproc_per_node")
        case "nodes" if topology is not None:
            fewest = "" if topology.nnodes_min is None else f"{topology.nnodes_min}:"
            value = f"{fewest}{topology.nnodes}"
        case "nccl":
            choices, value = nccl.LEVELS, "WARN"
            env = {} if loaded is None else loaded.preset.nccl.env
            value = env.get("NCCL_DEBUG", "WARN")
        case "recompute":
            choices = ("false", "true")
        case "format":
            choices, value = tuple(FORMATS), "fp32" if loaded is None else format_for(loaded.preset).name
            text = "; ".join(f"{form.name}: {form.text}" for form in FORMATS.values()) + "."
        case "hardware" if hardware:
            value = hardware
    return Field(name=name, label=label, table=table, help=text, value=value, choices=choices)


def _of_preset(loaded: Loaded) -> Iterator[Field]:
    hints = model.fields()
    for path, value in model.flat(loaded.preset).items():
        if path in _HIDDEN:
            continue
        table, dot, key = path.partition(".")
        hint = hints.get(path, str)
        choices = choices_of(hint)
        yield Field(
            name=SET + path,
            label=key if dot else path,
            table=table if dot else "hook",
            help=help_of(path) if choices else f"{help_of(path)} Takes {model.words(hint)}.",
            value=mask(key, shown(value)) if table in model.FREE else shown(value) or "not set",
            choices=choices,
        )


def _options() -> Iterator[Field]:
    for name, option in FORM_OPTIONS.items():
        yield Field(
            name=OPTION + name,
            label=option.label or option.flags[-1],
            table="run" if option.label else "options",
            help=f"{option.sentences} Several are {QUOTED}." if option.repeat else option.sentences,
            value=option.example or option.takes or "false",
            choices=() if option.takes else ("false", "true"),
        )


def _named() -> Iterator[Field]:
    for preset in nccl.nccl_presets().values():
        pairs = [f"{name}={value}" for name, value in preset.env.items()]
        changes = " ".join(pairs[:3])
        if len(pairs) > 3:
            changes += f" and {len(pairs) - 3} more, which the plan lists"
        yield Field(
            name=NAMED + preset.name,
            label=preset.name,
            table="NCCL settings by name",
            help=f"{preset.when} {changes}",
            value=preset.when,
            check=True,
        )


def choices_of(hint: Any) -> tuple[str, ...]:
    """Return the values of a type that has few; () for free text."""
    if hint is bool:
        return ("false", "true")
    if get_origin(hint) is Literal:
        return tuple(str(choice) for choice in get_args(hint))
    return ()


def shown(value: object) -> str:
    """Return a value in the form that a user types: "true", "8", "Block Attention"; None is ""."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return shlex.join(value)
    if isinstance(value, Mapping | list):
        return json.dumps(value, ensure_ascii=False)
    return f"{value:g}" if isinstance(value, float) else str(value)


def override(path: str, text: str) -> str:
    """Return the text of a preset's field in the form of `--set`. Raises RunError for an open quote."""
    hint = model.fields().get(path)
    if _is_list(hint) and not text.lstrip().startswith("["):
        return f"{path}={json.dumps(shell_words(text, path), ensure_ascii=False)}"
    return f"{path}={text}"


def _is_list(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return any(_is_list(part) for part in get_args(hint))
    return get_origin(hint) is tuple


def launch_form(preset: str, given: Sequence[Field], typed: Typed) -> LaunchForm:
    """Return the form to submit, with only the fields that exist. Raises RunError for an open quote."""
    filled = {field.name: typed[field.name].strip() for field in given if typed.get(field.name, "").strip()}
    own = {name: filled[name] for name, *_ in _OWN if name in filled}
    overrides = [
        override(name.removeprefix(SET), text) for name, text in filled.items() if name.startswith(SET)
    ]
    overrides += shell_words(filled.get(FURTHER.name, ""), FURTHER.label)
    return LaunchForm(
        preset=preset,
        overrides=tuple(overrides),
        nccl_presets=tuple(name.removeprefix(NAMED) for name in filled if name.startswith(NAMED)),
        options={
            name.removeprefix(OPTION): text for name, text in filled.items() if name.startswith(OPTION)
        },
        **own,
    )


def typed_of(form: LaunchForm) -> dict[str, str]:
    """Return the typed texts of a form that describes this launch."""
    typed = {name: text for name, *_ in _OWN if (text := getattr(form, name))}
    typed |= {OPTION + name: text for name, text in form.options.items()}
    further = []
    for pair in form.overrides:
        path, _, value = pair.partition("=")
        if path in model.fields() and path not in _HIDDEN:
            typed[SET + path] = value
        else:
            further.append(pair)
    return typed | ({FURTHER.name: shlex.join(further)} if further else {})


def kind_override(typed: Typed) -> tuple[str, ...]:
    """Return the override of the strategy's kind, if the user changed it: other fields then apply."""
    kind = typed.get(KIND, "")
    return (f"strategy.kind={kind}",) if kind else ()


def stepped(field: Field, text: str, step: int) -> str:
    """Return the next (1) or previous (-1) choice; "" if it is the preset's own value, hence no change."""
    if field.check:
        return "" if text else "on"
    now = text or field.value
    if now in field.choices:
        at = field.choices.index(now)
    elif step > 0:
        at = -1
    else:
        at = 0
    after = field.choices[(at + step) % len(field.choices)]
    return "" if after == field.value else after


def begun_with(field: Field, text: str, letter: str) -> str:
    """Return the next choice that begins with `letter`, or the current one."""
    now = text or field.value
    at = field.choices.index(now) + 1 if now in field.choices else 0
    for choice in (*field.choices[at:], *field.choices[:at]):
        if choice.lower().startswith(letter.lower()):
            return "" if choice == field.value else choice
    return text


LABEL = 27
"""Columns of the labels."""

CARET = "▏"

CHANGED = "◆"
"""Mark in front of a row that differs from the preset."""

_HEADINGS = {
    "run": "what runs",
    "where": "on which machines",
    "memory": "for the memory estimate",
    "further": "any other field of a preset",
    "options": "as on the command line",
    "hook": "distui in the ranks",
    "NCCL settings by name": "space chooses",
}


@dataclass(frozen=True, slots=True)
class FormRows:
    rows: list[Row]
    at: list[int]
    """Index of a field → index of its row."""
    end: int
    """The last row of the selected field."""


def form_rows(
    given: Sequence[Field], typed: Typed, current: int, caret: int, width: int, focus: bool
) -> FormRows:
    """Return all rows in `width` columns. `caret` is the insertion point in the current field's text."""
    rows: list[Row] = []
    at: list[int] = []
    end, table = 0, ""
    for index, field in enumerate(given):
        if field.table != table:
            if rows:
                rows.append(())
            table = field.table
            rows.append(heading(table, width))
        here = focus and index == current
        at.append(len(rows))
        rows.append(_field(field, typed.get(field.name, ""), here, caret, width))
        if here:
            rows += help_rows(field, width)
        if index == current:
            end = len(rows) - 1
    return FormRows(rows, at, end)


def heading(table: str, width: int) -> Row:
    """Return the name of a table and its subject."""
    text = _HEADINGS.get(table) or help_of(table).rstrip(".")
    return ((f"{table}  ", "head"), (fit(text, max(0, width - cell_len(table) - 2)).rstrip(), "dim"))


def help_rows(field: Field, width: int) -> list[Row]:
    """Return the help of a field, shown below it."""
    lines = textwrap.wrap(field.help, max(20, width - 4)) if field.help else []
    return [((f"    {line}", "dim"),) for line in lines]


def _field(field: Field, text: str, here: bool, caret: int, width: int) -> Row:
    mark: Cell = (f"{CHANGED} " if text else "  ", "accent")
    if field.check:
        box = f"[{'x' if text else ' '}] {fit(field.label, LABEL - 8)} "
        return (
            mark,
            (box, "head" if text or here else "text"),
            (fit(field.value, width - LABEL + 1).rstrip(), "dim"),
        )
    label: Cell = (f"{fit(field.label, LABEL - 3)} ", "head" if here else "text")
    return (mark, label, *_value(field, text, here, caret, max(4, width - LABEL - 1)))


def _value(field: Field, text: str, here: bool, caret: int, width: int) -> Row:
    style = "head" if text else "dim"
    if field.choices:
        now = text or field.value
        if not here:
            return ((fit(now, width).rstrip(), style),)
        at = f"{field.choices.index(now) + 1} of {len(field.choices)}" if now in field.choices else ""
        chosen = f"< {now} >"
        return ((chosen, "head"), (f"  {at}" if len(chosen) + len(at) + 2 <= width else "", "dim"))
    if not here:
        return ((fit(text or field.value, width).rstrip(), style),)
    if not text:
        return ((CARET, "accent"), (fit(field.value, width - 1).rstrip(), "dim"))
    return _edited(text, caret, width)


def _edited(text: str, caret: int, width: int) -> Row:
    """Return the text with the caret in it; of a long text the part around the caret."""
    first = max(0, caret - width + 6)
    before, after = text[first:caret], text[caret:]
    if first:
        before = "…" + before[1:]
    room = max(0, width - cell_len(before) - 1)
    after = after if cell_len(after) <= room else fit(after, room)
    return ((before, "head"), (CARET, "accent"), (after, "head"))


_KEYS = (
    (0, "Enter", "start, asks first", "start"),
    (2, "tab ↑↓", "complete, next field", "field"),
    (4, "/", "search", "search"),
    (5, "^r", "recent", "recent"),
    (7, "^g", "guide", "guide"),
    (6, "^s", "save", "save"),
    (3, "F2-F5", "plan … memory", "panes"),
    (1, "esc", "back", "back"),
)
"""Priority, key, description, and the short description for narrow terminals."""


def keys_row(width: int, typing: bool = False) -> Row:
    """Return the keys of the launch screen. `typing` in a field omits the slash, which is part of a path."""
    cells: Cells = [
        (order, ((key, "key"), (f" {long if width >= KEYS_FROM else short}", "text")), "   ")
        for order, key, long, short in _KEYS
        if not (typing and key == "/")
    ]
    return ((" ", "text"), *kept(cells, width - 2))


KEYS_FROM = 132
"""Minimum columns for all keys with their full descriptions."""


def plan_rows(preview: LaunchPreview, width: int | None = None) -> list[Row]:
    """Return the problems, then the plan verbatim; long lines wrap at `width` columns."""
    rows = problem_rows(preview.problems, width)
    if preview.problems and preview.text:
        rows.append(())
    return [*rows, *text_rows(preview.text, width)]


_SECTION = re.compile(r"(environment|each rank also gets) \((\d+) variables?.*")
_OURS = ("# distui", "# torch", "# shell")


def folded_plan(text: str) -> list[Row]:
    """Return the plan with variables of distui and torch only counted, so that the user's own stay visible."""
    kept = [""]
    section = ""
    for line in text.splitlines():
        if line and not line[0].isspace():
            match = _SECTION.fullmatch(line)
            section = "variables" if match else line
            if match:
                line = f"{match[1]}: {match[2]} variables, e shows them"
        is_blank_again = not line and not kept[-1]
        if not is_blank_again and not _is_folded(section, line):
            kept.append(line)
    return text_rows("\n".join(kept[1:]))


def _is_folded(section: str, line: str) -> bool:
    """Whether a line is about a file that is written, or a variable of distui or torch."""
    is_ours = line[:1].isspace() and any(mark in line for mark in _OURS)
    return section == "written" or (section == "variables" and is_ours)


def problem_rows(problems: Sequence[str], width: int | None = None) -> list[Row]:
    """Return why there is no plan, one sentence per problem."""
    if width is None:
        return [((f" {glyphs.BAD} ", "bad"), (problem, "text")) for problem in problems]
    return [row for problem in problems for row in labelled((f" {glyphs.BAD} ", "bad"), problem, width - 1)]


def text_rows(text: str, width: int | None = None) -> list[Row]:
    """Return a text with dimmed comments."""
    rows: list[Row] = []
    for line in text.splitlines():
        style = "dim" if line.lstrip().startswith("#") else "text"
        rows += [((f" {part}", style),) for part in (broken(line, width - 1) if width else [line])]
    return rows


def broken(line: str, width: int) -> list[str]:
    """Wrap a line, at blanks if there are any; continuation lines are indented by four more columns."""
    if len(line) <= width:
        return [line]
    lead = len(line) - len(line.lstrip())
    wrapped = textwrap.wrap(
        line, width, subsequent_indent=" " * (lead + 4), drop_whitespace=True, break_on_hyphens=False
    )
    return [" " * lead + wrapped[0].lstrip(), *wrapped[1:]] if wrapped else [line]


def yaml_rows(preview: LaunchPreview | None, width: int) -> list[Row]:
    """Return the task in the form that SkyPilot receives."""
    if preview is not None and preview.yaml:
        return text_rows(preview.yaml, width)
    if preview is not None and preview.problems:
        return problem_rows(preview.problems, width)
    text = "No SkyPilot task: this plan provisions no nodes. Type a place (sky, aws, slurm/lab) to see its YAML here."
    return wrap(text, width - 1, "dim", first=" ")


def finding_rows(preview: LaunchPreview | None, width: int) -> list[Row]:
    """Return the findings of the check, the worst first, each with its remedy."""
    if preview is None or preview.problems or not preview.text:
        return wrap("There is no plan yet that could be checked.", width - 1, "dim", first=" ")
    if preview.asks:
        return wrap(
            "The hosts are asked first: Enter does it, and shows what is found.",
            width - 1,
            "dim",
            first=" ",
        )
    if not preview.findings:
        return wrap("The check of this plan finds nothing.", width - 1, "dim", first=" ")
    return [row for finding in preview.findings for row in finding_row(finding, width)]


def finding_row(finding: Finding, width: int) -> list[Row]:
    """Return one finding: place and sentence, below them the remedy."""
    glyph, style = glyphs.severity(finding)
    head, text, *remedy = finding.as_lines()
    name = f"{finding.severity} {finding.id}"
    rows: list[Row] = [((f" {glyph} ", style), (name, "head"), (head.removeprefix(name), "dim"))]
    rows += wrap(text.strip(), width - 1, "text", first="    ")
    return rows + [
        row for line in remedy for row in wrap(line.strip(), width - 1, "dim", first="    ", then="      ")
    ]


def check_title(preview: LaunchPreview) -> str:
    """Return "lint: 1 error, 2 warnings"; "lint" if there are no findings, or no plan to check."""
    return ": ".join(filter(None, ("lint", "" if preview.problems else counted(preview.findings))))


_WIDTHS = (("infra", 20), ("instance", 18), ("CPUs", 5), ("GB", 5), ("GPUs", 9), ("$/h", 8))
_RIGHT = ("CPUs", "GB", "$/h")


def head_row() -> Row:
    return tuple((f"{fit(name, width, right=name in _RIGHT)} ", "dim") for name, width in _WIDTHS)


def _texts(offer: Candidate) -> tuple[str, ...]:
    price = NA if offer.price_per_hour is None else f"{offer.price_per_hour:.2f}"
    texts = (offer.infra, offer.instance, offer.vcpus, offer.memory_gb, offer.gpus, price)
    return tuple(text or "-" for text in texts)


def candidate_rows(offers: Sequence[Candidate]) -> list[Row]:
    """Return one row per kind of nodes in SkyPilot's order, with the price of all nodes together."""
    return [_candidate_row(offer) for offer in offers]


def _candidate_row(offer: Candidate) -> Row:
    cells: list[Cell] = []
    for text, (name, width) in zip(_texts(offer), _WIDTHS, strict=True):
        if text in ("-", NA):
            style = "stale"
        elif offer.chosen:
            style = "head"
        else:
            style = "text"
        cells.append((f"{fit(text, width, right=name in _RIGHT)} ", style))
    return (*cells, ("first", "ok")) if offer.chosen else tuple(cells)


def candidate_table(offers: Sequence[Candidate]) -> list[str]:
    """Return the candidates as text, nothing cut."""
    names = [name for name, _ in _WIDTHS]
    rows = [(*_texts(offer), "first" if offer.chosen else "") for offer in offers]
    return table([(*names, ""), *rows], frozenset(map(names.index, _RIGHT)))
