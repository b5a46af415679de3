"""The mesh of the ranks: sizes, coordinates, the arithmetic of a batch, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from each import for_each
from hypothesis import assume, given
from hypothesis import strategies as st

from distui.presets import rank_mesh
from distui.presets.finding import PlanError
from distui.presets.load import BUILTIN, load
from distui.presets.model import MESH_OPTIONS, Batch, Mesh, Preset, Strategy, StrategyKind


def preset(kind: StrategyKind = "fsdp2", batch: Batch | None = None, **sizes: int) -> Preset:
    return Preset(
        name="x", strategy=Strategy(kind=kind), mesh=Mesh(**sizes), batch=batch or Batch()  # type: ignore[arg-type]
    )  # fmt: skip


def refused(made: Preset, world: int = 8) -> str:
    with pytest.raises(PlanError) as caught:
        rank_mesh.dimensions(made, world)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_data_has_the_ranks_that_are_left() -> None:
    assert rank_mesh.dimensions(preset(), 8) == {"dp_shard": 8}
    assert rank_mesh.dimensions(preset("ddp"), 8) == {"dp": 8}
    assert rank_mesh.dimensions(preset(pp=2, tp=2), 8) == {"pp": 2, "dp_shard": 2, "tp": 2}
    assert rank_mesh.dimensions(preset(dp_replicate=2, cp=2), 8) == {
        "dp_replicate": 2,
        "dp_shard": 2,
        "cp": 2,
    }
    assert rank_mesh.dimensions(preset(tp=8), 8) == {"dp_shard": 1, "tp": 8}


@for_each(
    ("sizes", "product"), [({"dp_replicate": 4, "tp": 8, "pp": 4}, 128), ({"pp": 8, "tp": 8, "cp": 4}, 256)]
)
def test_a_product_that_fits_is_said_as_arithmetic(sizes: dict[str, int], product: int) -> None:
    found = rank_mesh.dimensions(preset(**sizes), product)  # type: ignore[arg-type]
    assert rank_mesh.mesh_text(found).startswith(f"{product} = pp {sizes['pp']} × ")


def test_a_product_that_does_not_fit_says_which_ranks_would() -> None:
    assert refused(preset(tp=4, pp=3)) == (
        "mesh pp 3 × tp 4 = 12 does not divide the world size 8: take 12 ranks, or change [mesh]"
    )
    assert "mesh tp 3 does not divide the world size 8: take 9 ranks" in refused(preset(tp=3))


@for_each(
    ("made", "words"),
    [
        (preset("ddp", tp=2), "mesh.tp 2 does not work with strategy ddp: take fsdp2"),
        (preset("fsdp2", ep=2), "mesh.ep 2 does not work with strategy fsdp2: take ddp"),
        (preset("single", cp=2), "take ddp or zero1 or fsdp2"),
        (preset("fsdp2", microbatches=4), "mesh.microbatches has no effect without mesh.pp above 1"),
        (preset("fsdp2", batch=Batch(accumulation=2), pp=2), "set mesh.microbatches instead"),
        (preset("ddp", ep=2, pp=2), "mesh.ep needs pure data parallelism"),
        (preset("ddp", ep=2, cp=2), "mesh.ep needs pure data parallelism"),
    ],
)
def test_what_does_not_go_together(made: Preset, words: str) -> None:
    assert words in refused(made)


def test_sequence_parallel_needs_tp() -> None:
    made = replace(preset(), mesh=Mesh(sequence_parallel=True))
    assert "mesh.sequence_parallel has no effect without mesh.tp above 1" in refused(made)


@given(
    sizes=st.fixed_dictionaries({name: st.integers(1, 3) for name in ("pp", "dp_replicate", "cp", "tp")}),
    rest=st.integers(1, 3),
)
def test_every_rank_has_coordinates_of_its_own(sizes: dict[str, int], rest: int) -> None:
    world = math.prod(sizes.values()) * rest
    found = rank_mesh.dimensions(preset(**sizes), world)  # type: ignore[arg-type]
    places = [tuple(rank_mesh.coordinates(found, rank).items()) for rank in range(world)]
    assert len(set(places)) == world
    assert dict(places[0]) == dict.fromkeys(found, 0)
    assert dict(places[-1]) == {name: size - 1 for name, size in found.items()}
    assume(list(found)[-1] == "tp")
    assert rank_mesh.coordinates(found, 1)["tp"] == 1 % found["tp"], "the last dimension runs fastest"


@for_each("name", BUILTIN)
def test_every_shipped_preset_has_a_mesh(name: str) -> None:
    made = load(name).preset
    assert math.prod(rank_mesh.dimensions(made, 8 if made.strategy.kind != "single" else 1).values()) in (
        1,
        8,
    )
    assert set(MESH_OPTIONS) >= {made.strategy.kind}


def test_the_arithmetic_of_a_batch() -> None:
    sizes = rank_mesh.dimensions(preset(tp=2, dp_replicate=2), 16)
    assert rank_mesh.data_ranks(sizes) == 8
    assert rank_mesh.check_batch(Batch(), sizes) is None
    said = rank_mesh.check_batch(Batch(micro=4, accumulation=2, total=64), sizes)
    assert said == "micro 4 × accumulation 2 × 8 data-parallel ranks = 64"


@for_each(
    ("batch", "remedy"),
    [
        (Batch(micro=4, total=128), "accumulation 4 gives it"),
        (Batch(micro=4, total=100), "take a multiple of 32"),
        (Batch(total=100), "also set batch.micro"),
    ],
)
def test_a_batch_that_does_not_come_out(batch: Batch, remedy: str) -> None:
    with pytest.raises(PlanError) as caught:
        rank_mesh.check_batch(batch, {"dp": 8})
    assert str(caught.value).startswith(f"batch.total {batch.total} ")
    assert remedy in str(caught.value)
