"""Check files and commands: recognise their kind, and apply its rules."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

from .. import skypilot
from ..finding import Finding, Severity, worst_first
from ..load import Library
from ..request import Request
from ..text_formats import (
    MOST_BYTES,
    MarkupNode,
    Unreadable,
    decoded,
    plain,
    read_json,
    read_toml,
    read_yaml,
)
from . import launches, script
from .accelerate_file import check_accelerate, is_accelerate
from .deepspeed_file import check_deepspeed, is_deepspeed
from .docker_file import check_dockerfile, is_dockerfile
from .kubernetes_file import check_kubernetes, check_together, is_manifest
from .lint_rules import issue, once
from .named_files import named_files
from .preset_file import check_preset, is_preset
from .skypilot_file import check_skypilot, is_task
from .surroundings import Surroundings

Exists = Callable[[str], bool]
Read = Callable[[str], bytes | None]
SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".sh", ".bash", ".sbatch", ".slurm", ".py")
"""Suffixes of files that lint can check."""
SHELLS = (".sh", ".bash", ".sbatch", ".slurm")
_SHEBANG = re.compile(r"#!.*?\b(python|(?:ba|da|z|k)?sh)[\d.]*\b")
OTHER_SHELLS = (".fish", ".csh", ".tcsh", ".ps1", ".bat", ".cmd")
"""Suffixes of scripts in languages that lint does not read."""
_OTHER_SHEBANG = re.compile(r"#!.*\b(fish|t?csh|pwsh|perl|ruby|node)\b")
_TEMPLATE = re.compile(r"\{\{.*\}\}")
_LAUNCHER = re.compile(r"\b(torchrun|accelerate launch|deepspeed|torch\.distributed\.(run|launch))\b")


def lint_file(
    name: str,
    data: bytes,
    *,
    exists: Exists | None = None,
    read: Read | None = None,
    presets: Library | None = None,
    facts: script.ScriptFacts | None = None,
) -> list[Finding]:
    """Check a file, and return the worst findings first. Raises PresetError for YAML without PyYAML.

    `exists` returns True if a file exists, and `read` its content, by its path relative to this one. `presets` is the
    library of existing presets. `facts`: the planned launch, for a script.
    """
    try:
        text = _text(data, name.lower().endswith(SHELLS) or data.startswith(b"#!"))
        return worst_first(
            _checked(name, text, Surroundings(file=name, exists=exists, read=read), presets, facts)
        )
    except Unreadable as error:
        if _TEMPLATE.search(data[:MOST_BYTES].decode("utf-8", "replace")):
            what = f"{name} is a template: nothing in it was checked."
            return [issue("L43", name, what, remedy="Check the file that is made from it.")]
        remedy = None if "not valid" in str(error) else ""
        where, what = f"{name}:{max(1, error.line)}", f"{name} {error}."
        severity: Severity = "warning" if "is larger than" in what else "error"
        return [issue("L41", where, what, remedy=remedy, severity=severity)]


def lint_command(text: str, exists: Exists, read: Read, gpus: bool | None = None) -> list[Finding]:
    """Check a command line and the files that it names, and return the worst findings first. Raises PresetError.

    `exists` and `read` take paths relative to the command's directory. `gpus`: True if there are GPUs.
    """
    findings = launches.check_text(text, Surroundings(exists=exists, read=read))
    for file in named_files(text):
        data = read(file.path)
        if data is not None:
            facts = script.ScriptFacts(nproc=file.nproc, nnodes=file.nnodes, gpus=gpus)
            findings += lint_file(file.path, data, exists=exists, read=read, facts=facts)
        elif exists(file.path):
            what = f"{file.path} cannot be read: nothing in it was checked."
            findings.append(issue("L41", file.path, what, severity="warning", remedy=""))
        elif not any(finding.value == file.path for finding in findings):
            remedy = "Give its path from where the command runs." if file.is_script else None
            what = f"{file.path} does not exist."
            findings.append(issue("L8", f"line {file.line}", what, value=file.path, remedy=remedy))
    return worst_first(once(findings))


def _text(data: bytes, is_shell: bool = False) -> str:
    """Decode a file, a shell script also if it is Latin-1. Raises Unreadable."""
    if len(data) > MOST_BYTES:
        raise Unreadable(1, f"is larger than {MOST_BYTES >> 20} MiB: no file that lint checks is so large")
    if is_shell and b"\0" not in data:
        try:
            data.decode()
        except UnicodeDecodeError:
            return data.decode("latin-1")
    return decoded(data)


def _checked(
    name: str,
    text: str,
    around: Surroundings,
    library: Library | None,
    facts: script.ScriptFacts | None,
) -> list[Finding]:
    """Check a file by its kind. Raises Unreadable."""
    match _kind(name, text):
        case "python":
            return script.check(text, name, facts)
        case "docker":
            return list(check_dockerfile(text, around))
        case "shell":
            return launches.check_text(text, around)
        case "toml":
            document = read_toml(text)
            if is_preset(document):
                return check_preset(document, text, name, library)
        case "json":
            tree = read_json(text)
            return [*_twice(text, tree, name), *_document([tree], around)]
        case "yaml":
            return _document(read_yaml(text), around)
    return [_unknown(name)]


def _twice(text: str, document: MarkupNode, name: str) -> list[Finding]:
    """Report keys that a DeepSpeed file gives twice, which DeepSpeed refuses."""
    found: list[str] = []

    def pairs(items: list[tuple[str, object]]) -> None:
        keys = [key for key, _ in items]
        found.extend(key for key in dict.fromkeys(keys) if keys.count(key) > 1)

    if is_deepspeed(document):
        json.loads(text, object_pairs_hook=pairs)
    what = "{} is given twice: DeepSpeed refuses the file."
    return [
        issue("L31", name, what.format(key), value=key, remedy="Keep one of the two.") for key in found[:9]
    ]


def _kind(name: str, text: str) -> str:
    """Return the kind of a file, by its suffix, else by its content."""
    lower = name.lower()
    if lower.endswith(OTHER_SHELLS) or _OTHER_SHEBANG.match(text):
        return ""
    if is_dockerfile(name, text):
        return "docker"
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


def kind_of(document: MarkupNode) -> Literal["accelerate", "deepspeed", "skypilot", "kubernetes", ""]:
    """Return the program that a document is for, by its keys, or ""."""
    if is_manifest(document):
        return "kubernetes"
    if is_accelerate(document):
        return "accelerate"
    if is_deepspeed(document):
        return "deepspeed"
    return "skypilot" if is_task(document) else ""


def _document(documents: list[MarkupNode], around: Surroundings) -> list[Finding]:
    findings: list[Finding] = []
    name = around.file
    kinds = [kind_of(document) for document in documents]
    for kind, document in zip(kinds, documents, strict=True):
        if kind == "accelerate":
            findings += check_accelerate(document, name)
        elif kind == "deepspeed":
            findings += check_deepspeed(document, name)
        elif kind == "skypilot":
            findings += check_skypilot(document, around)
        elif kind == "kubernetes":
            findings += check_kubernetes(document, name)
    findings += _group(documents, name)
    findings += check_together(documents, name)
    return findings if any(kinds) else [_unknown(name)]


def _group(documents: list[MarkupNode], name: str) -> Iterator[Finding]:
    tasks = [document for document in documents if is_task(document)]
    if tasks and len(documents) > 1:
        text = f"{name} holds several documents, a group of tasks: distui launches a file of one task."
        where = f"{name}:{tasks[1].line}" if tasks[1:] else name
        yield issue("L49", where, text, remedy=f"Launch it with `sky jobs launch {name}`.")


def lint_task(
    name: str, data: bytes, wish: Request, nnodes: int | None = None, exists: Exists | None = None
) -> list[Finding]:
    """Check a SkyPilot task together with the launch options, and return the worst findings first.

    Raises PresetError for YAML without PyYAML.
    """
    try:
        documents = read_yaml(_text(data))
    except Unreadable as error:
        return [issue("L41", f"{name}:{max(1, error.line)}", f"{name} {error}.")]
    given: dict[str, Any] = {} if nnodes is None else {"num_nodes": nnodes}
    given |= {"setup": wish.setup} if wish.setup else {}
    given |= {"workdir": wish.workdir} if wish.workdir else {}
    asked = skypilot.resources(wish)
    changed = []
    for document in documents:
        below = document.mapping.get("resources")
        merged = {**(below.mapping if below else {}), **plain(asked).mapping}
        mapping = {**document.mapping, **plain(given).mapping}
        if merged:
            mapping["resources"] = MarkupNode(below.line if below else 0, merged)
        changed.append(MarkupNode(document.line, mapping))
    findings = _document(changed, Surroundings(file=name, exists=exists))
    launched = (replace(one, severity="error") if one.id == "L47" else one for one in findings)
    return worst_first(launched)


def _unknown(name: str) -> Finding:
    text = f"{name} is of no kind that lint knows: nothing in it was checked."
    return issue("L43", name, text)
