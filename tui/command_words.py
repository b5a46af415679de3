"""Corrects command lines that are nearly right: another tool's spelling, a missing --, a misspelt verb. Pure.

Forms of torchrun, docker, kubectl and git with one possible meaning are accepted. An ambiguous form is refused with a
sentence that contains the unambiguous command lines.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from ..presets.sanitize import quoted

GLOBAL = ("--ascii", "--readonly")
"""Options of distui itself, which may also follow the verb."""
PLANS = ("launch", "plan")
"""Verbs whose second word is the script."""
SCRIPTS = (".py", ".sh", ".pyz")

ELSEWHERE = {
    "--max-restarts": "--restarts N is the option for it",
    "--nnode": "--nnodes N is the option for it",
    "--standalone": "leave it out: a launch on this machine always is",
    "--run-path": "leave it out",
    "--master-port": "--port PORT is the option for it",
    "--master-addr": "--hosts A,B names the nodes, the head first",
    "--node-rank": "--hosts A,B starts all nodes at once",
    "--rdzv-endpoint": "--hosts A,B starts all nodes at once, and --port PORT sets the port",
    "--rdzv-backend": "leave it out: distui brings its own rendezvous",
    "--rdzv-id": "leave it out: distui brings its own rendezvous",
    "--log-dir": "leave it out: `distui logs` prints the logs, and `status --json` has their directory",
    "--tee": "leave it out: `distui logs` prints the logs, and a launch without a terminal prints them at once",
    "--redirects": "leave it out: the logs of each rank are kept in files",
    "--num-processes": "--nproc-per-node N is the option for it",
    "--num-gpus": "--nproc-per-node N is the option for it",
    "--num-machines": "--nnodes N is the option for it",
    "-c": "--cluster NAME is the option for it",
    "--infra": "--on PLACE is the option for it",
    "--cloud": "--on PLACE is the option for it",
    "--use-spot": "--spot is the option for it",
    "--image-id": "--image IMAGE is the option for it",
    "-i": "--autostop MIN is the option for it",
    "--idle-minutes-to-autostop": "--autostop MIN is the option for it",
    "-d": "--detach is the option for it",
    "--detach-run": "--detach is the option for it",
    "--tail": "`distui logs RUN --help` lists what it takes",
    "--theme": "press t in the cockpit; `distui settings` shows the file that keeps the theme",
}
"""Options that a user may expect, but that have another name here, or none."""


class WrongUsage(Exception):
    """The command line is ambiguous or meaningless; the message is one sentence."""


class CommandWords(NamedTuple):
    """A command line in the form that the parser expects."""

    words: list[str]
    """The words for distui."""
    rest: list[str] | None
    """The user's own command; None if there is none."""


def understood(
    words: Sequence[str],
    rest: Sequence[str] | None,
    is_file: Callable[[str], bool],
    presumed: Callable[[], str] = lambda: "",
) -> CommandWords:
    """Return the command line in distui's own spelling. Raises WrongUsage.

    `is_file` tests whether a file exists. `presumed` returns the preset of a launch that names none, or "".
    """
    own, behind = list(words), None if rest is None else list(rest)
    if own and own[0] in (*PLANS, "exec"):
        own, behind = _with_script(own, behind, is_file, presumed)
    own = list(map(dashed, own))
    if own[:1] == ["tag"]:
        own = list(map(_tag_gone, own))
    first = [word for word in GLOBAL if word in own]
    own = [*first, *(word for word in own if word not in GLOBAL)]
    at = len(first)
    if own[at : at + 1] == ["help"]:
        own = [*first, *own[at + 1 : at + 2], "--help"]
    return CommandWords(own, behind)


def dashed(word: str) -> str:
    """Replace underscores in an option's name by dashes.

    torchrun also accepts --nproc_per_node; no option of distui has underscores.
    """
    name, equals, value = word.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if re.fullmatch(r"--[a-z]\w*", name) else word


def _tag_gone(word: str) -> str:
    """Read `distui tag RUN -bad` as the removal of a tag."""
    return f"--remove={word[1:]}" if re.fullmatch(r"-(?!h\Z)[^-].*", word, re.DOTALL) else word


def _with_script(
    words: list[str], rest: list[str] | None, is_file: Callable[[str], bool], presumed: Callable[[], str]
) -> tuple[list[str], list[str] | None]:
    """Split the words at the script, even if there is no -- before it."""
    verb, switches = words[0], _options(words[0])
    at = _script_index(words, switches, is_file, presumed)
    if at is None:
        return words, rest
    command = words[at:]
    corrected = shlex.join([*words[:at], "--", *command, *(rest or ())])
    if rest is not None:
        raise WrongUsage(f"{quoted(command[0])} belongs after --: `distui {corrected}`")
    free = {"-m", "--module", "--no-python"}.intersection(words[:at])
    if verb in PLANS and not free and not _is_script(command[0], is_file):
        raise WrongUsage(
            f"{quoted(command[0])} is not an existing script: `distui {corrected}` if it is one"
        )
    own = [word for word in command[1:] if dashed(word).partition("=")[0] in switches.keys() | set(GLOBAL)]
    if own:
        raise WrongUsage(
            f"{own[0]} after {quoted(command[0])} may be its own option or distui's: `distui {corrected}` gives it to "
            "the script; write distui's options before --"
        )
    return words[:at], command


def _script_index(
    words: list[str],
    switches: Mapping[str, bool],
    is_file: Callable[[str], bool],
    presumed: Callable[[], str],
) -> int | None:
    """Return the index of the script: the first word of `exec`, else the second, after the preset; None without one.

    The preset may be missing if one is presumed. Raises WrongUsage.
    """
    verb, places = words[0], _positions(words, switches, 1)
    if verb == "exec" or (places and _is_script(words[places[0]], is_file) and presumed()):
        return places[0] if places else None
    return _index_after_preset(words, _positions(words, switches, 2), is_file)


def _index_after_preset(
    words: list[str], places: Sequence[int] | None, is_file: Callable[[str], bool]
) -> int | None:
    if not places or len(places) > 1:
        return places[1] if places else None
    first = words[places[0]]
    if _is_script(first, is_file):
        preset = f"distui {words[0]} PRESET -- {shlex.quote(first)}"
        raise WrongUsage(f"no PRESET before {quoted(first)}: `{preset}`; `distui presets` lists them")
    return None


def _options(verb: str) -> dict[str, bool]:
    """Return the options of a verb, and whether a value follows each."""
    from ..presets.request import options as launch_options

    about = {flag: bool(each.takes) for each in launch_options(verb) for flag in each.flags}
    return {"-h": False, "--help": False, **dict.fromkeys(GLOBAL, False), **about}


def _positions(words: Sequence[str], switches: Mapping[str, bool], enough: int) -> list[int] | None:
    """Return the indexes of the words that are neither options nor their values, without the verb.

    Return None if an unknown option precedes the script, since it may take a value.
    """
    places: list[int] = []
    at = 1
    while at < len(words):
        word = words[at]
        name, equals, _ = dashed(word).partition("=")
        if not word.startswith("-") or word == "-":
            places.append(at)
            at += 1
            continue
        full = _meant(name, switches)
        if not full and len(places) < enough:
            return None
        has_value = bool(full) and not equals and all(switches[flag] for flag in full)
        at += 2 if has_value else 1
    return places


def _meant(name: str, switches: Mapping[str, bool]) -> list[str]:
    """Return the options that a name, possibly shortened, can mean."""
    return [name] if name in switches else [flag for flag in switches if flag.startswith(name)]


def _is_script(word: str, is_file: Callable[[str], bool]) -> bool:
    return word.endswith(SCRIPTS) or ("/" in word and is_file(word))


ALIKE = {
    "launch": ("run", "start", "submit", "train"),
    "ls": ("list", "ps", "jobs"),
    "logs": ("log", "tail"),
    "status": ("top", "show", "describe", "info"),
    "attach": ("open", "connect"),
    "stop": ("kill", "cancel", "end"),
    "rm": ("delete", "remove"),
    "prune": ("clean",),
    "lint": ("check",),
    "plan": ("dry-run",),
    "events": ("journal",),
    "diagnose": ("explain", "debug"),
    "dump": ("stacks",),
    "diff": ("compare", "comparison"),
    "presets": ("strategies",),
    "settings": ("config",),
}
"""Verbs, and their names in other programs."""


def verb_refusal(word: str, verbs: Collection[str]) -> str:
    """Return why a word is no verb, with the verb that the user may mean."""
    alike = next((verb for verb, words in ALIKE.items() if word.lower() in words), "")
    near = alike if alike in verbs else _near(word.lower(), verbs)
    hint = f"did you mean `distui {near}`? " if near else ""
    return f"there is no verb {quoted(word)}: {hint}`distui --help` lists the verbs"


def option_refusal(unknown: Sequence[str], prog: str, help_text: str) -> str:
    """Return why the first of these words is not accepted; `help_text` is the output of the verb's `--help`."""
    word = next((word for word in unknown if word.startswith("-")), unknown[0])
    listed = f"`{prog} --help` lists what it takes"
    if not word.startswith("-"):
        return f"{quoted(word)}: one word too many; {listed}"
    name = word.partition("=")[0]
    elsewhere = ELSEWHERE.get(name, "")
    if elsewhere and _is_of_verb(elsewhere, help_text):
        return f"{prog} has no option {name}: {elsewhere}"
    near = _near(name, set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", help_text)))
    return f"{prog} has no option {quoted(name)}: {f'did you mean {near}? ' if near else ''}{listed}"


def _is_of_verb(hint: str, help_text: str) -> bool:
    """Return False if a hint names an option first that the verb does not have."""
    named = hint.split()[0]
    return not named.startswith("--") or named in help_text


def _near(word: str, candidates: Iterable[str]) -> str:
    return next(iter(get_close_matches(word, sorted(candidates), 1, 0.65)), "")


_CHOICE = re.compile(
    r"argument (?P<name>\S+): invalid choice: (?P<value>'.*?'|\".*?\").*?\(choose from (?P<choices>.*)\)$"
)


def choice_refusal(message: str, prog: str) -> str:
    """Return argparse's message about an invalid choice as a sentence; "" for other messages."""
    match = _CHOICE.match(message)
    if match is None:
        return ""
    value = match["value"][1:-1]
    choices = [choice.strip(" '\"") for choice in match["choices"].split(",")]
    near = _near(value, choices)
    named = (
        f"{match['name']} {value}" if match["name"].startswith("-") else f"`{prog}` has no {quoted(value)}"
    )
    hint = f"did you mean {near}? " if near else ""
    return f"{named}: {hint}take {', '.join(choices[:-1])} or {choices[-1]}"
