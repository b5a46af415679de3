"""completion: the script for bash, zsh or fish, and the candidates for the word at the cursor.

argcomplete reads the parsers of the command line. This module adds candidates that no parser lists: runs, presets,
hosts, files. It runs for each Tab, so it imports modules only on demand, and takes a run's name from its directory.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from ...presets import base_dirs
from ...presets.finding import PresetError
from ...runners.run.errors import RunError
from ..command_words import PLANS as WITH_SCRIPT
from ..command_words import SCRIPTS
from ..option_values import paths_on
from ..verb_table import VERBS

SHELLS = ("bash", "zsh", "fish")

MOST_TAGGED = 300
"""Maximum number of runs that are searched for tags."""

Words = Collection[str]
"""Candidates for a word; the values of a mapping describe them."""


def script(options: argparse.Namespace) -> int:
    """Print the script that connects a shell's completion to distui. Raises RunError."""
    from argcomplete.shell_integration import shellcode

    shell = options.shell or os.path.basename(os.environ.get("SHELL", ""))
    if shell not in SHELLS:
        raise RunError(f"which shell? `distui completion {SHELLS[0]}`, {SHELLS[1]} or {SHELLS[2]}")
    # Without bash's own completion, which offers files if no run fits.
    text = shellcode(["distui"], shell=shell, complete_arguments=["-o", "nospace"])
    sys.stdout.write(text.lstrip("\n"))
    return 0


def answer(parser: Callable[[str | None], argparse.ArgumentParser]) -> int:
    """Write the candidates for the word at the cursor; argcomplete then ends the process.

    `parser` returns the parser of one verb, or of all verbs for None.
    """
    import argcomplete
    from argcomplete.completers import SuppressCompleter
    from argcomplete.lexers import split_line

    try:
        _, prefix, _, words, _ = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))
    except (KeyError, ValueError):
        return 1
    typed = [word for word in words[1:] if not word.startswith("-")]
    made = _parser_at(words[1:], typed, prefix, parser)
    argcomplete.autocomplete(made, always_complete_options=False, default_completer=SuppressCompleter())
    return 0


def _parser_at(
    words: list[str], typed: list[str], prefix: str, parser: Callable[[str | None], argparse.ArgumentParser]
) -> argparse.ArgumentParser:
    """Return the parser for the words before the cursor; `prefix` is the word at the cursor."""
    verb = typed[0] if typed else None
    if verb in ("help", "man"):
        made = argparse.ArgumentParser(add_help=False)
        made.add_argument("help")
        made.add_argument("verb", choices=sorted(_verbs(parser(None))))
        return made
    if _in_command(words, typed):
        return _files_alone()
    made = parser(verb)
    verbs = _verbs(made)
    if verb is not None and verb not in verbs:
        return argparse.ArgumentParser(add_help=False)
    if verb in WITH_SCRIPT and _after_preset(words, verbs[verb]) and prefix[:1] != "-":
        return _files_alone()
    for name, takes in verbs.items():
        _add_completers(name, takes)
    return made


def _in_command(words: list[str], typed: list[str]) -> bool:
    """Whether the cursor is in the user's own command."""
    scripts = [word for word in typed[1:] if word.endswith(SCRIPTS)]
    verb = typed[0] if typed else ""
    return "--" in words or (verb in WITH_SCRIPT and bool(scripts)) or (verb == "exec" and len(typed) > 1)


def _add_completers(verb: str, takes: argparse.ArgumentParser) -> None:
    if verb in WITH_SCRIPT:  # the script, if no -- precedes it
        takes.add_argument("own").completer = files  # type: ignore[attr-defined]
    for action in takes._actions:
        if action.choices is None and action.dest != "own":
            action.completer = _completer(verb, action)  # type: ignore[attr-defined]


def _files_alone() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(add_help=False, prefix_chars="\0")
    made.add_argument("own", nargs="*").completer = files  # type: ignore[attr-defined]
    return made


def _after_preset(words: list[str], takes: argparse.ArgumentParser) -> bool:
    """Whether a preset follows the verb, and the next word is no value of an option."""
    has_preset, is_value = False, False
    for word in words[words.index(takes.prog.rpartition(" ")[2]) + 1 :]:
        if is_value:
            is_value = False
        elif word.startswith("-"):
            action = takes._option_string_actions.get(word)
            is_value = action is not None and action.nargs != 0
        else:
            has_preset = True
    return has_preset and not is_value


def _verbs(made: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    verbs: Mapping[str, argparse.ArgumentParser] = made.verbs  # type: ignore[attr-defined]
    return verbs


def _completer(verb: str, action: argparse.Action) -> Callable[..., Words]:
    """Return the completer of one option or positional of a verb."""
    if action.dest in ("run", "runs", "names") or action.metavar in ("A", "B"):
        own = runs(verb)
        if "FILE" in str(action.metavar):
            return lambda prefix, **_: {**own, **dict.fromkeys(files(prefix), "")}
        return lambda **_: own
    by_verb = BY_VERB.get((verb, action.dest))
    if by_verb is not None:
        return by_verb
    return BY_METAVAR.get(str(action.metavar)) or BY_NAME.get(action.dest, _nothing)


def _columns(prefix: str, **_: Any) -> Words:
    """Complete columns of `ls`; of a list `A,B,…` the last one."""
    from ..rows.runs import COLUMNS

    return _last_of_list(prefix, COLUMNS)


def _last_of_list(prefix: str, words: Iterable[str]) -> Words:
    """Complete the last word of a list `A,B,…` with a word that it does not have yet."""
    head, comma, _ = prefix.rpartition(",")
    there = head.split(",")
    return [f"{head}{comma}{word}" for word in words if word not in there]


def _filters(prefix: str, **asked: Any) -> Words:
    """Complete a filter: fields with an operator; after `:` the field's values."""
    from ..rows.run_filter import FIELDS, STATES

    field, colon, _ = prefix.lstrip("!").partition(":")
    contrary = prefix[: len(prefix) - len(prefix.lstrip("!"))]
    if not colon:
        ways = ((name, ":" if about.kind == "text" else "<>") for name, about in FIELDS.items())
        return [f"{contrary}{name}{sign}" for name, signs in ways for sign in signs]
    values: Mapping[str, Callable[[], Words]] = {
        "state": lambda: [state.rstrip("?") for state in STATES],
        "preset": presets,
        "tag": _tags,
        "host": lambda: hosts(**asked),
        "name": lambda: runs("ls"),
    }
    return [f"{contrary}{field}:{value}" for value in values.get(field, _nothing)()]


def _tags(prefix: str = "", **_: Any) -> Words:
    """Complete tags of the newest runs, with the sign that was typed."""
    from ...runners.run import run_notes

    folder, names = _newest()
    tags = {tag for name in names[:MOST_TAGGED] for tag in run_notes.read(folder / name).tags}
    sign = "+" if prefix.startswith("+") else ""
    return [sign + tag for tag in sorted(tags)]


def _channels(prefix: str = "", **_: Any) -> Words:
    """Complete notification channels; after `:` rules, of a list `A,B,…` the last one."""
    from ...runners.notify import channels, rule_words

    channel, colon, rest = prefix.partition(":")
    if not colon:
        return list(channels.load().channels)
    rules = _last_of_list(rest, (*rule_words.RULES, rule_words.ALL))
    return [f"{channel}:{chosen}" for chosen in rules]


def _nothing(**_: Any) -> Words:
    return ()


# --- candidates ------------------------------------------------------------------------------------------------


_RUN = re.compile(r"(\d{8})-(\d\d)(\d\d)\d\d-(.+)-[0-9a-f]{8}")


def _newest() -> tuple[Path, list[str]]:
    """Return the directory of the runs, and the names in it, the newest first."""
    folder = base_dirs.base("XDG_STATE_HOME", os.environ) / "distui" / "runs"
    return folder, sorted(_names_in(folder), reverse=True)


def runs(verb: str) -> dict[str, str]:
    """Map names of runs that suit a verb, the newest first, to their start times."""
    folder, names = _newest()
    wants = VERBS[verb].wants
    named: dict[str, str] = {}
    for name in names:
        match = _RUN.fullmatch(name)
        if match is None:
            continue
        if wants:
            has_ended = (folder / name / "end.json").exists()
            if has_ended != (wants == "ended"):
                continue
        named.setdefault(match[4], f"of {match[1]} {match[2]}:{match[3]}")
    return named


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def presets() -> Words:
    """Return the names of presets of distui, the user and the project."""
    from ...presets.load import library

    try:
        return library().names
    except PresetError:
        return ()


def nccl_presets(**_: Any) -> Words:
    """Return the names for --nccl-preset."""
    from ...presets import nccl

    return tuple(nccl.nccl_presets())


def _nccl_variables(**_: Any) -> Words:
    from ...presets import nccl

    return [f"{name.removeprefix('NCCL_')}=" for name in nccl.catalogue()]


def _fields(**_: Any) -> Words:
    from ...presets import model

    return [f"{name}=" for name in model.fields()]


def _metrics(**_: Any) -> Words:
    from ...runners.telemetry.metric_names import METRICS, SOURCES

    return [*SOURCES, *METRICS]


def hosts(**asked: Any) -> Words:
    """Return hosts from ssh's own files: `Host` entries without a pattern, and known hosts."""
    home = Path(os.path.expanduser("~")) / ".ssh"
    chosen = getattr(asked.get("parsed_args"), "ssh_config", None)
    named: dict[str, None] = {}
    for line in _lines(Path(chosen).expanduser() if chosen else home / "config"):
        words = line.replace("=", " ", 1).split()
        if words and words[0].lower() == "host":
            named.update(dict.fromkeys(word for word in words[1:] if not set(word) & set("*?!")))
    for line in _lines(home / "known_hosts"):
        first = line.partition(" ")[0]
        if not first.startswith(("#", "@", "|", "[")):
            named.update(dict.fromkeys(filter(None, first.split(","))))
    return list(named)


def _lines(path: Path) -> Iterable[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()


def _host_list(prefix: str, **asked: Any) -> Words:
    return _last_of_list(prefix, hosts(**asked))


def files(prefix: str, **_: Any) -> Words:
    return paths_on(prefix)


def folders(prefix: str, **_: Any) -> Words:
    """Complete directories."""
    return [path for path in files(prefix) if path.endswith("/")]


def _levels(**_: Any) -> Words:
    return ("VERSION", "WARN", "INFO", "TRACE")


def _signals(**_: Any) -> Words:
    return ("USR1", "USR2", "TERM", "INT", "HUP", "KILL", "CONT", "STOP")


BY_VERB: Mapping[tuple[str, str], Callable[..., Words]] = {
    ("presets", "name"): lambda parsed_args, **_: (
        nccl_presets() if parsed_args.action == "nccl" else presets()
    ),
    ("notify", "name"): lambda parsed_args, **_: (
        runs("notify") if parsed_args.action == "log" else _channels()
    ),
    ("ls", "sort"): _columns,
    ("ls", "columns"): _columns,
    ("lint", "preset"): lambda prefix, **_: [*presets(), *files(prefix)],
}
"""Completers by verb and name of the argument, before all others."""

BY_METAVAR: Mapping[str, Callable[..., Words]] = {
    "PRESET": lambda **_: presets(),
    "SIG": _signals,
    "LEVEL": _levels,
    "METRIC": _metrics,
    "DIR": folders,
    "FILTER": _filters,
    "+TAG": _tags,
    "TAG": _tags,
    "CHANNEL[:RULES]": lambda prefix, **_: [*_channels(prefix), "off"],
    "FILE": files,
    "PATH": files,
    "FIELD=VALUE": _fields,
    "A,B,…": _host_list,
    "PATH[:NAME]": files,
    "FILE|RUN": files,
}
"""Completers by the placeholder of a value."""

BY_NAME: Mapping[str, Callable[..., Words]] = {
    "base": lambda **_: presets(),
    "preset": lambda **_: presets(),
    "nccl_preset": nccl_presets,
    "nccl": _nccl_variables,
    "host": hosts,
    "from_shell": lambda **_: tuple(os.environ),
    "on": lambda **_: ("local", "sky"),
}
"""Completers by the name of an option, for options with a generic placeholder."""
