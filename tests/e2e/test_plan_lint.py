"""A plan says what lint finds on it, as text and as JSON; a plan on which nothing is found says nothing."""

from __future__ import annotations

import ast

import pytest

from distui.presets import script_imports, script_tree

from .runs import EXAMPLES, World


def test_a_plan_with_what_was_found_on_it(world: World) -> None:
    words = ("--nproc-per-node", "2", "--env", "NCCL_TIMEOUT=5", "--", str(EXAMPLES / "plain_ddp.py"))
    text = world.distui("plan", "ddp", *words).fine().out
    assert "\nlint\n  error L1 NCCL_TIMEOUT 5\n      Neither NCCL nor torch reads NCCL_TIMEOUT" in text
    (found,) = world.distui("plan", "ddp", "--json", *words).fine().json()["findings"]
    assert (found["id"], found["severity"], found["where"]) == ("L1", "error", "NCCL_TIMEOUT")
    assert found["remedy"]


def test_a_plan_says_which_sizes_do_not_fit(world: World) -> None:
    words = ("--nproc-per-node", "2", "--", str(EXAMPLES / "chargpt.py"), "--heads", "3")
    text = world.distui("plan", "tp", *words).fine().out
    assert "error L44 mesh.tp 2\n      3 heads cannot be divided by tp 2: 3 / 2 = 1.5." in text


def test_nothing_found_nothing_said(world: World) -> None:
    words = ("plan", "ddp", "--nproc-per-node", "2", "--", str(EXAMPLES / "chargpt.py"))
    assert "\nlint\n" not in world.distui(*words).fine().out


def test_a_secret_among_the_arguments_is_nowhere_in_a_plan(world: World) -> None:
    script = world.script("t.py", "import torch\n")
    secret = "S3cr3tV4lue99xyz"
    given = ("--token", secret, f"--password={secret}", "--db", f"https://u:{secret}@h/x")
    for words in (("--nproc-per-node", "2"), ("--nproc-per-node", "2", "--json")):
        shown = world.distui("plan", "ddp", *words, "--", script, *given).fine().out
        assert secret not in shown
        assert shown.count("***") >= 6


def test_a_script_of_any_size_and_all_that_it_imports_have_one_limit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    syntax_tree = script_imports.syntax_tree

    def counted(source: bytes) -> ast.Module:
        parsed.append(len(source))
        return syntax_tree(source)

    monkeypatch.setattr(script_tree, "syntax_tree", counted)
    for number in range(50):
        world.script(f"m{number}.py", f"# {number}\n" + "torch.x=dist.y(1)\n" * 29_000)
    script = world.script("t.py", "".join(f"import m{number}\n" for number in range(50)))
    text = world.distui("plan", "ddp", "--nproc-per-node", "2", "--", script).fine().out
    assert (
        "m0.py, m1.py, m2.py and 47 more, which it imports, could not be read, so what it obeys is unknown."
        in text
    )
    assert (
        "m0.py is too large to be read (more than 150,000 syntax nodes): nothing in it was checked." in text
    )
    assert (
        "read with the script that imports them: m1.py, m2.py, m3.py and 46 more; nothing in them" in text
    )
    assert sum(parsed) <= script_tree.MOST_BYTES
