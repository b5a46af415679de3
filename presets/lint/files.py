"""Files by what is in them: which rules each kind is looked at with."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..finding import Finding, worst_first
from ..load import Library
from . import consumers, launches, markup, plans, presetfile, script
from .lint_rules import issue
from .markup import MOST_BYTES, MarkupNode, Unreadable, decoded
from .shell import Surroundings

Yaml = Callable[[str], list[MarkupNode]]
"""Reads the documents of a YAML text; raises Unreadable."""
Exists = Callable[[str], bool]
SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".sh", ".bash", ".sbatch", ".slurm", ".py")
"""Of files that can be looked at."""
SHELLS = (".sh", ".bash", ".sbatch", ".slurm")
_SHEBANG = re.compile(r"#!.*?\b(python|(?:ba|da|z|k)?sh)[\d.]*\b")
_LAUNCHER = re.compile(r"\b(torchrun|accelerate launch|deepspeed|torch\.distributed\.(run|launch))\b")


def lint_file(
    name: str, data: bytes, yaml: Yaml, *, exists: Exists | None = None, presets: Library | None = None
) -> list[Finding]:
    """What is wrong with a file, the worst first. Never raises.

    `exists`: whether there is a file, seen from this one; `presets`: the library of those that there are.
    """
    try:
        text = _text(data)
        return worst_first(_checked(name, text, yaml, exists, presets))
    except Unreadable as error:
        remedy = None if "not valid" in str(error) else ""
        return [issue("L41", f"{name}:{error.line}", f"{name} {error}.", remedy=remedy)]


def lint_text(text: str, exists: Exists | None = None) -> list[Finding]:
    """What is wrong with a command line or a shell script, the worst first. Never raises."""
    return worst_first(launches.check_text(text, Surroundings(exists=exists)))


def _text(data: bytes) -> str:
    """Raises Unreadable."""
    if len(data) > MOST_BYTES:
        raise Unreadable(1, f"is larger than {MOST_BYTES >> 20} MiB, which no file is that lint knows")
    return decoded(data)


def _checked(
    name: str, text: str, yaml: Yaml, exists: Exists | None, library: Library | None
) -> list[Finding]:
    """Raises Unreadable."""
    match _kind(name, text):
        case "python":
            return script.check(text, name)
        case "shell":
            return launches.check_text(text, Surroundings(file=name, exists=exists))
        case "toml":
            document = presetfile.parse(text)
            if presetfile.is_preset(document):
                return presetfile.check(document, text, name, library)
        case "json":
            return _document([markup.read(text)], name, exists)
        case "yaml":
            return _document(yaml(text), name, exists)
    return [_unknown(name)]


def _kind(name: str, text: str) -> str:
    """By its suffix; where that says nothing by its first line."""
    lower = name.lower()
    if lower.endswith(".py"):
        return "python"
    if lower.endswith(SHELLS):
        return "shell"
    for kind, suffixes in (("toml", (".toml",)), ("json", (".json",)), ("yaml", (".yaml", ".yml"))):
        if lower.endswith(suffixes):
            return kind
    shebang = _SHEBANG.match(text)
    if shebang:
        return "python" if shebang[1] == "python" else "shell"
    if text.lstrip().startswith("{"):
        return "json"
    return "shell" if _LAUNCHER.search(text) else ""


def _document(documents: list[MarkupNode], name: str, exists: Exists | None) -> list[Finding]:
    """accelerate's, DeepSpeed's or SkyPilot's, told by their keys."""
    findings: list[Finding] = []
    recognised = False
    for document in documents:
        keys = document.mapping.keys()
        if keys & {"distributed_type", "compute_environment"}:
            findings += consumers.check_accelerate(document, name)
        elif consumers.is_config(document):
            findings += consumers.check_deepspeed(document, name)
        elif keys & plans.MARKS:
            findings += plans.check_skypilot(document, name, exists)
        else:
            continue
        recognised = True
    return findings if recognised else [_unknown(name)]


def _unknown(name: str) -> Finding:
    text = f"{name} is neither a SkyPilot task nor accelerate's, DeepSpeed's or a preset: nothing in it was checked."
    return issue("L43", name, text)
