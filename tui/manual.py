"""The man pages, generated from the parsers and the guides of the verbs. Pure."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping

from .verb_guide import EXAMPLES, MEANINGS, exit_codes
from .verb_table import GROUPS, VERBS

SHORT = "the cockpit for distributed PyTorch training"


def pages(
    verbs: Mapping[str, argparse.ArgumentParser], top: argparse.ArgumentParser, version: str
) -> dict[str, str]:
    """Return the pages by file name: distui.1, and one per verb."""
    whole = {"distui.1": _lines(_top(verbs, top, version))}
    return whole | {
        f"distui-{name}.1": _lines(_of_verb(name, verb, version)) for name, verb in verbs.items()
    }


def _lines(lines: Iterator[str]) -> str:
    return "\n".join(lines) + "\n"


def _top(
    verbs: Mapping[str, argparse.ArgumentParser], top: argparse.ArgumentParser, version: str
) -> Iterator[str]:
    yield from _head("distui", SHORT, version)
    yield from (".SH SYNOPSIS", _usage(top))
    yield from (".SH DESCRIPTION", _text(top.description or ""), ".PP")
    yield _text("Each verb has a page of its own, as distui-launch(1).")
    yield ".SH OPTIONS"
    yield from _options(top)
    for heading, declared in GROUPS.items():
        yield f".SH {_text(heading.upper())}"
        for name in declared:
            yield from (".TP", f".BR distui\\-{_text(name)} (1)", _text(_sentence(verbs[name])))
    yield ".SH EXAMPLES"
    yield from _examples(EXAMPLES)
    yield from _exits(MEANINGS)


def _of_verb(name: str, verb: argparse.ArgumentParser, version: str) -> Iterator[str]:
    yield from _head(f"distui-{name}", _sentence(verb), version)
    yield from (".SH SYNOPSIS", _usage(verb), ".SH OPTIONS")
    yield from _options(verb)
    yield ".SH EXAMPLES"
    yield from _examples(VERBS[name].examples)
    yield from _exits(exit_codes(name))
    yield from (".SH SEE ALSO", ".BR distui (1)")


def _head(title: str, about: str, version: str) -> Iterator[str]:
    yield f'.TH "{_text(title.upper())}" "1" "" "distui {_text(version)}" "distui"'
    yield from (".nh", ".SH NAME", f"{_text(title)} \\- {_text(about[:1].lower() + about[1:])}")


def _usage(verb: argparse.ArgumentParser) -> str:
    """Return the usage line without argparse's colours (Python 3.14 and newer)."""
    return _text(re.sub(r"\x1b\[[\d;]*m", "", verb.format_usage()).removeprefix("usage: "))


def _sentence(verb: argparse.ArgumentParser) -> str:
    return (verb.description or "").rstrip(".")


def _options(verb: argparse.ArgumentParser) -> Iterator[str]:
    """Yield positionals and options, under their headings."""
    for group in verb._action_groups:
        actions = [action for action in group._group_actions if action.help is not argparse.SUPPRESS]
        if actions and group.title not in ("options", "positional arguments"):
            yield f".SS {_text(group.title or '')}"
            yield from [_text(group.description)] if group.description else []
        for action in actions:
            yield from (".TP", _spelled(action), _text(_help(action)))


def _spelled(action: argparse.Action) -> str:
    takes = "" if action.nargs == 0 else _text(_placeholder(action))
    if not action.option_strings:
        return f"\\fI{takes}\\fR"
    flags = ", ".join(f"\\fB{_text(flag)}\\fR" for flag in action.option_strings)
    return f"{flags} \\fI{takes}\\fR" if takes else flags


def _placeholder(action: argparse.Action) -> str:
    if action.choices is not None and action.metavar is None:
        return "|".join(map(str, action.choices))
    return str(action.metavar or action.dest)


def _help(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%") or "see docs/cli.md"


def _examples(examples: Mapping[str, str]) -> Iterator[str]:
    for typed, about in examples.items():
        yield from (".TP", f".B {_text(f'distui {typed}')}", _text(about))


def _exits(codes: Mapping[int, str]) -> Iterator[str]:
    yield ".SH EXIT STATUS"
    for code, meaning in codes.items():
        yield from (".TP", f".B {code}", _text(meaning))


def _text(text: str) -> str:
    """Escape a text so that roff prints it verbatim."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq").replace("`", "\\(ga")
    return re.sub(r"^(?=[.'])", r"\\&", " ".join(escaped.split()))
