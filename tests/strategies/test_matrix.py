"""Every shipped preset trains the example through a real launch; what it did to the model is seen inside the ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from e2e.runs import World

from distui.presets.load import BUILTIN

from . import table
from .cases import CASES, NOT_HERE, TWINS, Case

pytestmark = pytest.mark.torch
INSIDE = Path(__file__).with_name("inside.py")


class Seen:
    """What the ranks of each case wrote down; a case is launched when it is first asked for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._found: dict[str, list[dict[str, Any]]] = {}

    def of(self, name: str) -> list[dict[str, Any]]:
        """By rank."""
        if name not in self._found:
            preset, case = TWINS.get(name) or (name, CASES[name])
            self._found[name] = self._launch(name, preset, case)
        return self._found[name]

    def recomputed(self, name: str) -> list[dict[str, Any]]:
        """By rank, of the case with activation checkpointing."""
        option = ("--set", "strategy.activation_checkpointing=true")
        return self._launch(f"{name}-recomputed", name, replace(CASES[name], options=option))

    def _launch(self, name: str, preset: str, case: Case) -> list[dict[str, Any]]:
        folder = self._world.work / name
        folder.mkdir()
        words = ("launch", preset, "--nproc-per-node", str(case.world), "--restarts", "0", *case.options)
        run = self._world.run(*words, "--", str(INSIDE), str(folder), case.kind)
        assert run.wait("done", 120) == 0, run.describe() + run.distui("logs", "--stream", "err").out
        return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(case.world)]


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    world = World()
    try:
        yield Seen(world)
    finally:
        world.close()


def test_no_preset_is_missing() -> None:
    assert {*CASES, *NOT_HERE} == set(BUILTIN)
    assert set(table.known()) == set(CASES)


def test_the_documentation_has_what_was_seen() -> None:
    assert table.in_document() == table.text()


@pytest.mark.long
@pytest.mark.parametrize("name", ["fsdp2-tp", "pp-1f1b", "moe", "context"])
def test_checkpointed_layers_compute_the_same(seen: Seen, name: str) -> None:
    twin = seen.of(CASES[name].twin)[0]["losses"]
    for rank in seen.recomputed(name):
        assert rank["losses"] == pytest.approx(twin, rel=2e-3)
        assert rank["resumed"] == pytest.approx(rank["unbroken"], rel=2e-3)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_a_preset_does_what_it_says(seen: Seen, name: str) -> None:
    case, ranks = CASES[name], seen.of(name)
    twin = seen.of(case.twin)[0]["losses"]
    for found in ranks:
        assert found["world"] == case.world
        assert found["losses"] == pytest.approx(twin, rel=2e-3), "must compute what its twin computes"
        assert found["resumed"] == pytest.approx(found["unbroken"], rel=2e-3), (
            "must go on from what it saved"
        )
        assert found["losses"][-1] < 0.85 * found["losses"][0]
        assert case.inside in found["classes"]
        assert found["optimizer"] == case.optimizer
    for part, share in zip(("parameters", "gradients", "moments"), case.holds, strict=True):
        mean = sum(found[part] for found in ranks) / case.world
        assert mean == pytest.approx(share, abs=0.01), part
    kept = table.seen(ranks)
    if os.environ.get("DISTUI_WRITE"):
        table.remember(name, kept)
    assert kept == pytest.approx(table.known()[name], abs=0.05), "verification.md says otherwise"
    places = [tuple(found["coordinates"].items()) for found in ranks]
    assert len(set(places)) == case.world, "every rank has coordinates of its own"
