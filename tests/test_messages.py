"""Error messages and helps in the form that CONTRIBUTING, "Messages", describes, as far as a machine can tell."""

from __future__ import annotations

import argparse
import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from test_rooms import BANNED_PHRASES, name, parsed, sources

from distui.presets.sanitize import OPENERS
from distui.tui.cli import parser

pytestmark = pytest.mark.xdist_group("messages")  # one process parses all modules


@dataclass(frozen=True)
class Message:
    """A text that the code writes; `{}` stands for what is filled in."""

    where: str
    text: str


def written(node: ast.expr | None) -> str | None:
    """A literal text, also an f-string, a sum of both, or one that `.format` fills; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(written(part) or "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = written(node.left), written(node.right)
        return None if left is None and right is None else f"{left or '{}'}{right or '{}'}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return written(node.left)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return written(node.func.value)
    return None


def branches(node: ast.expr) -> Iterator[ast.expr]:
    """The expression itself, or each side of a choice."""
    if isinstance(node, ast.IfExp):
        yield from (*branches(node.body), *branches(node.orelse))
    else:
        yield node


def named(node: ast.expr) -> str:
    """The last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def errors_of(module: ast.Module, where: str) -> Iterator[Message]:
    """The first texts of all errors that a module makes."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and re.search(r"Error$|^Unreadable$|^_?refused$", named(node.func)):
            for side in itertools.chain.from_iterable(map(branches, node.args)):
                if text := written(side):
                    yield Message(f"{where}:{node.lineno}", text)


def helps_of(parser: argparse.ArgumentParser, verb: str = "") -> Iterator[Message]:
    """The helps of a parser's options, groups and verbs, as `--help` prints them."""
    described = [parser.description, parser.epilog]
    for group in parser._action_groups:
        described += [group.description]
    for action in parser._actions:
        if action.help not in (None, argparse.SUPPRESS):
            described.append(action.help)
        if isinstance(action, argparse._SubParsersAction):
            described += [choice.help for choice in action._choices_actions]
            for name, below in action.choices.items():
                yield from helps_of(below, f"{verb} {name}".strip())
    for text in described:
        if text:
            yield Message(verb, text)


@dataclass(frozen=True)
class Texts:
    """What the whole product may print."""

    errors: list[Message]
    helps: list[Message]


@pytest.fixture(scope="module", name="product")
def _product() -> Texts:
    own = [path for path in sources() if "examples" not in path.parts]  # those are the users'
    errors = [error for path in own for error in errors_of(parsed(path), name(path))]
    helps = list(helps_of(parser()))
    assert len(errors) > 300
    assert len(helps) > 200
    return Texts(errors, helps)


def test_a_text_is_read_however_it_is_put_together() -> None:
    module = ast.parse('raise RunError("a" f"b{c}")\nraise x.PlanError("a." if b else "c: %s" % d)')
    errors = list(errors_of(module, "m"))
    assert errors == [Message("m:1", "ab{}"), Message("m:2", "a."), Message("m:2", "c: %s")]


def ends_in_a_period(text: str) -> bool:
    """Whether a text of one line ends as prose does; an ellipsis is none."""
    return re.fullmatch(r"[^\n]*[^.\n]\.", text.strip()) is not None


def test_an_error_of_one_line_has_no_final_period(product: Texts) -> None:
    assert [each for each in product.errors if ends_in_a_period(each.text)] == []


def test_a_help_of_one_sentence_has_no_final_period(product: Texts) -> None:
    ended = [each for each in product.helps if ends_in_a_period(each.text)]
    assert [each for each in ended if ". " not in each.text] == []


UNWELCOME = re.compile(
    r"(?i:\bplease\b|\b(?:oops|sorry|unfortunately|simply)\b)|\w!(?:\s|$)|\s$|^\s|"
    + "|".join(map(re.escape, BANNED_PHRASES))
)


def test_a_message_is_matter_of_fact(product: Texts) -> None:
    assert [each for each in (*product.errors, *product.helps) if UNWELCOME.search(each.text)] == []


NAMES = frozenset(
    ("cp", "distui", "down", "env", "ep", "job", "mesh", "nnodes", "notify", "pp", "slurm", "ssh", "torch",
     "torchrun", "tp")
)  # fmt: skip
"""Words in front of messages that are names of programs, verbs, options and fields."""


def test_each_ordinary_first_word_gets_its_capital(product: Texts) -> None:
    first = {each.text.split(maxsplit=1)[0].rstrip(",;.!?") for each in product.errors if each.text.strip()}
    ordinary = {word for word in first if re.fullmatch(r"[a-z]+", word)}
    assert ordinary - OPENERS - NAMES == set()
    assert set() == OPENERS & NAMES
