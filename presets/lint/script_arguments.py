"""Rules for the arguments that a launch gives to its Python script, against the script's argparse options (L76)."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ..finding import Finding
from ..script_facts import Option
from ..spelling import nearest
from .launch_sites import Launch
from .lint_rules import case
from .script import ScriptContents
from .shell import Word

FORGIVING = frozenset(
    {"parse_known_args", "HfArgumentParser", "add_subparsers", "parse_args_into_dataclasses"}
)
"""Names in scripts that take options which their source does not show."""


def check_arguments(launch: Launch, path: Word, seen: ScriptContents) -> Iterator[Finding]:
    """Check the words after a script, and the option that some launchers add."""
    if not _is_whole(seen):
        return
    options = list(seen.script.options)
    names = {name for option in options for name in option.names} | {"--help", "-h"}
    yield from _added(launch, path, names)
    words = _after(launch.call.words, path)
    given = list(_given(words))
    for word in given:
        name = word.text.partition("=")[0]
        if not _matches(name, names):
            facts = {"script": path.text, "option": name}
            near = nearest(name, sorted(names), 0.8)
            yield case("L76", "unknown", launch.around.at(word.line), facts, value=name, near=near)
    yield from _missing(launch, path, seen, given, words)


def _is_whole(seen: ScriptContents) -> bool:
    """Return True if the source shows all options of the only argument parser."""
    calls = [full for full, _ in seen.calls if full == "argparse.ArgumentParser"]
    parsers = {
        name for name, values in seen.script.assigned.items() for value in values if _makes_parser(value)
    }
    if len(calls) != 1 or not parsers or seen.mentioned & FORGIVING or "parse_args" not in seen.mentioned:
        return False
    for node in seen.script.tree.of(ast.Call):
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        if any(isinstance(value, ast.Name) and value.id in parsers for value in given):
            return False  # another function may add options
    return not any(
        keyword.arg in ("parents", "fromfile_prefix_chars")
        for full, call in seen.calls
        if full == "argparse.ArgumentParser"
        for keyword in call.keywords
    )


def _makes_parser(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and "ArgumentParser" in ast.unparse(value.func)


def _added(launch: Launch, path: Word, names: set[str]) -> Iterator[Finding]:
    """Report a script without the option that its launcher adds."""
    flags = {word.text.replace("-", "_") for word in launch.call.words}
    if launch.is_deepspeed and "__no_local_rank" not in flags:
        added = "--local_rank"
    elif launch.call.legacy and "__use_env" not in flags:
        added = "--local-rank"
    else:
        return
    if added not in names and not (launch.is_deepspeed and "--local-rank" in names and added in names):
        facts = {"script": path.text, "option": added, "program": launch.call.program}
        name = "legacy" if launch.call.legacy else "added"
        yield case("L76", name, launch.where, facts, value=added)


def _after(words: Sequence[Word], path: Word) -> Sequence[Word]:
    at = next((at for at, word in enumerate(words) if word is path), len(words))
    return words[at + 1 :]


def _given(words: Sequence[Word]) -> Iterator[Word]:
    """Yield the words that are options."""
    for word in words:
        if word.text == "--":
            return
        if word.text.startswith("--") and "$" not in word.text.partition("=")[0] and len(word.text) > 2:
            yield word


def _matches(name: str, names: set[str]) -> bool:
    """Return True if argparse takes a name: itself, or as a prefix; and `--no-x` of a Boolean option."""
    if name in names or any(known.startswith(name) for known in names):
        return True
    return name.startswith("--no-") and f"--{name[5:]}" in names


def _missing(
    launch: Launch, path: Word, seen: ScriptContents, given: Sequence[Word], words: Sequence[Word]
) -> Iterator[Finding]:
    """Report required options that are not given."""
    if any("$" in word.text for word in words):
        return
    names = {word.text.partition("=")[0] for word in (*given, *words)}
    for option in _required(seen):
        if not any(_is_given(known, names) for known in option.names):
            facts = {"script": path.text, "option": option.name}
            yield case("L76", "missing", launch.where, facts, value=option.name)


def _is_given(known: str, names: set[str]) -> bool:
    return any(name == known or (name.startswith("--") and known.startswith(name)) for name in names)


def _required(seen: ScriptContents) -> Iterator[Option]:
    by_name = {option.name: option for option in seen.script.options}
    for node in seen.script.tree.of(ast.Call):
        required = any(
            keyword.arg == "required"
            and isinstance(keyword.value, ast.Constant)
            and keyword.value.value is True
            for keyword in node.keywords
        )
        if required:
            texts = [
                arg.value
                for arg in node.args
                if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
            ]
            yield from (by_name[text] for text in texts if text in by_name)
