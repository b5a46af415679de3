"""Two accounts side by side: what differs, what is unknown, what the samples bear, and secrets."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from each import for_each
from hypothesis import given
from hypothesis import strategies as st

from distui.presets.secrets import MASK
from distui.runners.comparison.account import Account, Quantity, gaps_of
from distui.runners.comparison.differences import (
    Comparison,
    Difference,
    compare,
    compared_runs,
    masked,
    ratio_text,
    single,
)
from distui.runners.comparison.elsewhere import received
from distui.runners.comparison.plan_facts import argument_facts, plan_facts
from distui.runners.run.errors import UnreachableError
from distui.runners.run.state import RunState


def side(title: str = "a", **parts: Any) -> Account:
    return Account(title, f"20260101-000000-{title}-01234567", "succeeded", **parts)


def row(compared: Comparison, section: str, name: str) -> Difference:
    (found,) = [
        each
        for part in compared.sections
        if part.name == section
        for each in part.rows
        if each.name == name
    ]
    return found


def names(compared: Comparison, section: str) -> list[str]:
    return [each.name for part in compared.sections if part.name == section for each in part.rows]


def median(value: float, samples: int = 100, spread: float = 0.01, name: str = "rank.step_s") -> Quantity:
    half = value * spread / 2
    return Quantity(name, "step time", "s", value, samples, (value - half, value + half), "less")


# --- numbers ---


def number(a: Quantity | None, b: Quantity | None) -> Difference:
    sides = [
        side(title, quantities=() if each is None else (each,)) for title, each in (("a", a), ("b", b))
    ]
    (found,) = [each for part in compare(*sides).sections if part.name == "numbers" for each in part.rows]
    return found


def test_a_difference_beyond_the_spread_has_a_ratio_and_who_is_better() -> None:
    found = number(median(0.1), median(0.2))
    assert (found.kind, found.a, found.b, found.note) == ("differs", "100 ms", "200 ms", "A is better")
    assert found.ratio == pytest.approx(2.0)
    assert found.values == (0.1, 0.2)


@for_each(("samples", "kind"), [(1, "unknown"), (19, "unknown"), (20, "differs")])
def test_few_samples_state_no_difference(samples: int, kind: str) -> None:
    found = number(median(0.1, samples), median(0.2))
    assert found.kind == kind
    assert ("too few samples to tell: " in found.note) == (kind == "unknown")


def test_noise_is_no_difference() -> None:
    assert number(median(0.1, 30, 1.5), median(0.12, 30, 1.5)).kind == "same"
    assert (
        number(median(0.1, 5000, 0.001), median(0.101, 5000, 0.001)).kind == "same"
    )  # 1 % is not worth a line


def test_what_a_side_lacks_is_unknown_and_never_zero() -> None:
    found = number(None, median(0.2))
    assert (found.kind, found.a, found.values, found.ratio) == ("unknown", None, (None, 0.2), None)


@given(st.floats(), st.floats(), st.integers(0, 1000), st.integers(0, 1000))
def test_any_numbers_make_a_row(a: float, b: float, few: int, many: int) -> None:
    found = number(median(a, few), median(b, many))
    assert found.kind in ("same", "differs", "unknown")
    assert found.ratio is None or math.isfinite(found.ratio)
    assert ratio_text(found.ratio) == "" or ratio_text(found.ratio).endswith("x")


def test_nothing_is_divided_by_zero() -> None:
    assert number(median(0.0), median(0.2)).ratio is None


def test_how_far_two_runs_came_is_no_difference() -> None:
    last = [Quantity("last:rank.step", "step, last", "", value, 9) for value in (10.0, 99.0)]
    compared = compare(side(quantities=(last[0],)), side(quantities=(last[1],)))
    assert compared.equal
    assert row(compared, "numbers", "step, last").kind == "value"


# --- texts ---


def test_only_differences_unless_all_is_asked_for() -> None:
    a, b = ({"versions": {"torch": "2.9", "NCCL": nccl}} for nccl in ("2.27", "2.28"))
    assert names(compare(side(facts=a), side(facts=b)), "versions") == ["NCCL"]
    both = compare(side(facts=a), side(facts=b), everything=True)
    assert names(both, "versions") == ["torch", "NCCL"]
    assert not both.equal
    assert compare(side(facts=a), side(facts=a)).equal


def test_what_an_older_record_lacks_is_unknown() -> None:
    compared = compare(side(facts={"code": {}}), side(facts={"code": {"commit": "abc", "file t.py": "12"}}))
    assert {row(compared, "code", name).kind for name in ("commit", "file t.py")} == {"unknown"}
    assert row(compared, "code", "commit").a is None
    assert compared.equal  # an unknown is no difference


def test_what_is_listed_whole_can_be_missing() -> None:
    a, b = {"arguments": {"--lr": "1"}}, {"arguments": {"--lr": "1", "--batch": "8"}}
    found = row(compare(side(facts=a), side(facts=b)), "arguments", "--batch")
    assert (found.kind, found.a, found.b) == ("only B", "-", "8")
    found = row(compare(side(facts=b), side(facts={})), "arguments", "--batch")
    assert (found.kind, found.b) == ("unknown", None)
    a = {"plan": {"strategy: wrap": "x"}}
    assert (
        row(
            compare(side(facts=a), side(facts={"plan": {"strategy: tp": "1"}})), "plan", "strategy: wrap"
        ).kind
        == "only A"
    )
    assert (
        row(compare(side(facts=a), side(facts={"plan": {"preset": "p"}})), "plan", "strategy: wrap").kind
        == "unknown"
    )


@for_each(
    ("command", "facts"),
    [
        (["t.py", "--lr", "1e-3", "--amp", "--seed=3", "data"], {"--lr": "1e-3", "--amp": "given", "--seed": "3",
                                                                 "argument 1": "data"}),
        (["-m", "pkg.train", "--lr", "-1"], {"--lr": "-1"}),
        (["t.py", "-v", "-v", "a b"], {"-v": "given a b"}),
        (["t.py"], {}),
        ([], None),
        ("t.py", None),
    ],
)  # fmt: skip
def test_arguments_by_their_names(command: object, facts: dict[str, str] | None) -> None:
    assert argument_facts({"command": command}) == facts


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda part: st.lists(part) | st.dictionaries(st.text(), part),
    )
)
def test_any_plan_gives_facts(value: Any) -> None:
    fields = ("preset", "mesh", "restart", "env", "sources", "command", "nnodes", "hook")
    facts = plan_facts(dict.fromkeys(fields, value), RunState())
    assert all(isinstance(text, str) for text in facts.values())
    argument_facts({"command": value})


# --- the environment ---


def environment(a: dict[str, str], b: dict[str, str], everything: bool = False, **parts: Any) -> Comparison:
    return compare(side(env=a, env_whole=True, **parts), side(env=b, env_whole=True), everything=everything)


def test_hundreds_of_variables_show_what_differs() -> None:
    many = {f"VARIABLE_{number}": "x" * 200 for number in range(700)}
    compared = environment(
        {**many, "LR": "1", "OLD": "1"}, {**many, "LR": "2", "NEW": "", "TERM": "xterm", "SSH_TTY": "3"}
    )
    assert names(compared, "environment") == ["LR", "NEW", "OLD"]
    assert row(compared, "environment", "NEW").a == "unset"
    (section,) = [part for part in compared.sections if part.name == "environment"]
    assert section.hidden == 2
    assert len(names(environment({**many, "LR": "1"}, many, everything=True), "environment")) == 701


def test_a_bundle_lacks_variables_and_says_nothing_of_them() -> None:
    a, b = side(env={"LR": "1", "HOME": "/a"}, env_whole=True), side(env={"LR": "2", "PLAN": "1"})
    compared = compare(a, b)
    assert names(compared, "environment") == ["LR", "PLAN"]
    assert row(compared, "environment", "PLAN").kind == "only B"
    assert row(compare(a, b, everything=True), "environment", "HOME").kind == "unknown"
    assert any("B: its environment" in note for note in compared.notes)


SECRETS = ("hf_" + "a" * 34, "hf_" + "b" * 34)


@for_each(
    ("a", "b", "prints", "kind"),
    [
        (MASK, MASK, ("k-1", "k-2"), "differs"),
        (MASK, MASK, ("k-1", "k-1"), "same"),
        (MASK, MASK, ("k-1", "other-1"), "unknown"),
        (MASK, MASK, ("k-1", ""), "unknown"),
        (MASK, MASK, ("", ""), "unknown"),
        (MASK, "", ("", ""), "differs"),
        (SECRETS[0], SECRETS[1], ("", ""), "differs"),  # a record that was not masked
        (SECRETS[0], SECRETS[0], ("", ""), "same"),
        (MASK, SECRETS[0], ("", ""), "unknown"),
    ],
)
def test_secrets_are_compared_and_never_shown(a: str, b: str, prints: tuple[str, str], kind: str) -> None:
    sides = [
        side(
            title, env={"HF_TOKEN": value}, env_whole=True, fingerprints={"HF_TOKEN": mark} if mark else {}
        )
        for title, value, mark in (("a", a, prints[0]), ("b", b, prints[1]))
    ]
    compared = compare(*sides, everything=True)
    assert row(compared, "environment", "HF_TOKEN").kind == kind
    text = msgspec.json.encode(compared_runs(compared)).decode()
    assert not any(secret in text for secret in SECRETS)
    if "k-1" in prints:
        assert "k-1" not in text


def test_secrets_of_arguments_are_hidden_by_their_option() -> None:
    a, b = ({"arguments": {"--api-key": value}} for value in ("abcd1234", "efgh5678"))
    compared = compare(side(facts=a), side(facts=b))
    assert row(compared, "arguments", "--api-key").kind == "differs"
    assert "abcd1234" not in msgspec.json.encode(compared_runs(compared)).decode()


def test_a_record_that_leaves_the_machine_has_neither_secrets_nor_fingerprints() -> None:
    account = side(
        env={"HF_TOKEN": SECRETS[0], "A": "1"}, fingerprints={"HF_TOKEN": "k-1"},
        facts={"cause": {"first cause": f"GET https://u:pass1234@host failed with {SECRETS[1]}"}},
    )  # fmt: skip
    text = msgspec.json.encode(masked(account)).decode()
    assert not any(part in text for part in (*SECRETS, "k-1", "pass1234"))
    assert msgspec.json.decode(text, type=Account).env["A"] == "1"


@given(st.text(min_size=1), st.text(), st.text())
def test_hostile_texts_reach_no_terminal(name: str, left: str, right: str) -> None:
    """Whoever writes a name or a value, also on another host: no control character gets out."""
    a = side(env={name: left}, env_whole=True, facts={"plan": {name: left}}, gaps=(left,))
    b = side(env={name: right}, env_whole=True, facts={"plan": {name: right}})
    for compared in (compare(a, b), compare(a, b, everything=True), single(a)):
        for part in compared.sections:
            for each in part.rows:
                assert not any(
                    ord(char) < 32 or char == "\x7f"
                    for text in (each.name, each.a, each.b)
                    for char in text or ""
                )
        msgspec.json.encode(compared_runs(compared)).decode()


def test_several_attempts_are_named() -> None:
    assert any("all 3 attempts" in gap for gap in gaps_of(side(attempts=3)))
    assert not any("attempts" in gap for gap in gaps_of(side(attempts=3, attempt=2)))


@for_each(
    "out", [b"", b"{}", b'{"title": 3}', b"{" * 5000, b'{"title":"a","run":"r","state":"s","format":9}']
)
def test_what_another_host_answers_may_be_anything(out: bytes) -> None:
    with pytest.raises(
        UnreachableError, match="gpu1: its distui sends a record that this version cannot read"
    ):
        received(b"Welcome!\n" + out, "gpu1")
