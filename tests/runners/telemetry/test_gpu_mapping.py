"""Ranks on GPUs: launch environment against NVML, as tables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distui.runners.run.samples import Gpu, RankSample
from distui.runners.telemetry.gpu_places import Launched, Pids, Placed, expected_gpu, place, witness

GIB = 1 << 30
NONE = Pids({}, {})


def gpu(index: int, *held: tuple[int, int | None], name: str = "H100", mig: bool = False) -> Gpu:
    return Gpu(
        index,
        f"GPU-{index}{index}{index}-aaaa",
        name,
        pids=tuple(pid for pid, _ in held),
        pid_mem=tuple(size for _, size in held),
        mig=mig,
    )


FOUR = [gpu(index) for index in range(4)]
UNLIKE = [gpu(0, name="A30"), gpu(1, name="H100")]
MIG = [gpu(0, mig=True), gpu(1)]


def test_what_the_launch_environment_gives() -> None:
    for visible, local_rank, gpus, order, expected in [
        (None, 2, FOUR, None, 2),
        (None, 4, FOUR, None, None),
        ("", 0, FOUR, None, None),
        ("-1", 0, FOUR, None, None),
        ("3,1", 0, FOUR, None, 3),
        ("3,1", 1, FOUR, None, 1),
        (" 3 , 1 ", 1, FOUR, None, 1),
        ("3,9,1", 0, FOUR, None, 3),
        ("3,9,1", 2, FOUR, None, 3),  # 9 does not exist: what follows is invisible, one is left
        ("2", 5, FOUR, None, 2),  # each rank is shown its own GPU only
        ("1,2", 3, FOUR, None, None),
        ("GPU-333-aaaa,GPU-111-aaaa", 1, FOUR, None, 1),
        ("GPU-33", 0, FOUR, None, 3),  # a UUID may be shortened
        ("GPU-", 0, FOUR, None, None),  # but not until it fits several
        ("GPU-999-bbbb", 0, FOUR, None, None),
        ("1", 0, UNLIKE, None, None),
        ("1", 0, UNLIKE, "PCI_BUS_ID", 1),
        ("GPU-111-aaaa", 0, UNLIKE, None, 1),
        ("MIG-5c1b", 0, MIG, None, 0),
        ("MIG-5c1b", 0, [gpu(0, mig=True), gpu(1, mig=True)], None, None),
        ("MIG-GPU-111-aaaa/3/0", 0, MIG, None, 1),
        ("0", 0, MIG, None, None),
        (None, 0, [], None, None),
    ]:
        assert expected_gpu(Launched(7, local_rank, (), visible, order), gpus) == expected


def test_nvml_confirms_and_brings_the_memory() -> None:
    launched = [Launched(4, 0, (100, 101)), Launched(5, 1, (200,))]
    found = place(launched, [gpu(0, (100, 3 * GIB), (101, GIB)), gpu(1, (200, None))], NONE)
    assert found.ranks == {4: Placed(0, "nvml", 4 * GIB), 5: Placed(1, "nvml", None)}
    assert found.findings == ()


def test_without_pids_the_environment_is_believed_and_nobody_accused() -> None:
    launched = [Launched(0, 0, (10,)), Launched(1, 1, (11,))]
    found = place(launched, [gpu(0, (70010, GIB)), gpu(1, (70011, GIB))], NONE)
    assert found.ranks == {0: Placed(0, "env"), 1: Placed(1, "env")}
    assert found.findings == ()


def test_pids_of_other_namespaces_are_translated() -> None:
    pids = Pids({70010: (70010, 10), 70011: (70011, 11)}, {})
    launched = [Launched(0, 0, (70010,)), Launched(1, 1, (70011,))]
    found = place(launched, [gpu(0, (11, GIB)), gpu(1, (10, GIB))], pids)
    assert found.ranks == {0: Placed(1, "nvml", GIB), 1: Placed(0, "nvml", GIB)}


def test_in_the_initial_namespace_a_number_is_never_an_inner_pid() -> None:
    pids = Pids({70010: (70010, 10)}, {10: "python"}, initial=True)
    found = place([Launched(0, 0, (70010,))], [gpu(0, (10, GIB))], pids)
    assert found.ranks == {0: Placed(0, "env")}
    assert [finding.id for finding in found.findings] == ["gpu-foreign-process:gpu0"]


def test_a_forgotten_set_device() -> None:
    launched = [Launched(4, 0, (10,)), Launched(5, 1, (11,))]
    found = place(launched, [gpu(0, (10, 9 * GIB), (11, GIB // 2)), gpu(1, (11, 9 * GIB))], NONE, node=3)
    (finding,) = found.findings
    assert (finding.id, finding.rank, finding.node) == ("gpu-stray-context", 5, 3)
    assert finding.text == "rank 5 also holds memory on GPU 0 (forgotten torch.cuda.set_device?)"
    assert finding.evidence == ("GPU 0: 512.0 MiB", "GPU 1: 9.0 GiB")
    assert found.ranks[5] == Placed(1, "nvml", 9 * GIB)


def test_a_rank_that_spreads_over_gpus_of_nobody_else_is_fine() -> None:
    found = place([Launched(0, 0, (10,))], [gpu(0, (10, GIB)), gpu(1, (10, GIB))], NONE)
    assert found.findings == ()
    assert found.ranks[0].gpu == 0


def test_all_ranks_on_one_gpu() -> None:
    found = place([Launched(0, 0, (10,)), Launched(1, 1, (11,))], [gpu(0, (10, 5), (11, 5)), gpu(1)], NONE)
    assert found.ranks[1] == Placed(0, "nvml", 5)
    assert [(finding.id, finding.text) for finding in found.findings] == [
        ("gpu-shared:gpu0", "ranks 0, 1 all compute on GPU 0")
    ]


def test_ranks_that_share_a_gpu_by_mig_are_fine() -> None:
    launched = [Launched(0, 0, (10,), "MIG-a"), Launched(1, 1, (11,), "MIG-b")]
    found = place(launched, [Gpu(0, "GPU-0", "H100", pids=(10, 11), mig=True)], NONE)
    assert found.ranks == {0: Placed(0, "nvml"), 1: Placed(0, "nvml")}
    assert found.findings == ()


def test_a_process_of_somebody_else_on_a_gpu_of_ours() -> None:
    pids = Pids({}, {4711: "python3"}, ours=frozenset({99}))
    gpus = [gpu(0, (10, GIB), (99, 1)), gpu(1, (11, GIB), (4711, GIB), (4712, GIB)), gpu(2, (5000, GIB))]
    found = place([Launched(0, 0, (10,)), Launched(1, 1, (11,))], gpus, pids)
    (finding,) = found.findings
    assert finding.id == "gpu-foreign-process:gpu1"
    assert finding.text == (
        "GPU 1 is held by pid 4711 (python3), pid 4712 (name not readable), not of this run"
    )


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((GIB, 2 * GIB), Placed(1, "nvml", 2 * GIB)), ((None, GIB), Placed()), ((None, None), Placed())],
)
def test_several_gpus_and_no_environment_that_tells(
    sizes: tuple[int | None, int | None], expected: Placed
) -> None:
    gpus = [gpu(0, (10, sizes[0]), name="A30"), gpu(1, (10, sizes[1]))]
    assert place([Launched(0, 0, (10,))], gpus, NONE).ranks[0] == expected


def test_samples_are_filled_in() -> None:
    found = place([Launched(4, 0, (10,))], [gpu(0, (10, GIB))], NONE)
    samples = {4: RankSample(4, pid=10, threads=3), 5: RankSample(5)}
    assert found.fill(samples) == {
        4: RankSample(4, pid=10, threads=3, gpu=0, gpu_source="nvml", gpu_mem=GIB),
        5: RankSample(5),
    }


def test_proc_is_the_witness() -> None:
    me, parent = os.getpid(), os.getppid()
    seen = witness([Launched(0, 0, (me,))], [gpu(0, (me, 1), (parent, 1), (2**22 + 1, 1))], ours=(7,))
    assert seen.names == {parent: Path(f"/proc/{parent}/comm").read_text().strip()}
    assert seen.ours == {7}
    assert seen.initial or seen.namespaced[me][-1] > 0


def test_a_proc_of_an_inner_namespace_is_not_taken_for_the_first(tmp_path: Path) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "10").mkdir()
    (tmp_path / "10/status").write_text("Name:\tpython\nNSpid:\t70010\t10\n")
    (tmp_path / "self/ns/pid").symlink_to("pid:[4026532999]")
    launched = [Launched(0, 0, (10,))]
    assert witness(launched, [], proc=str(tmp_path)) == Pids({10: (70010, 10)}, {})
    (tmp_path / "self/ns/pid").unlink()
    (tmp_path / "self/ns/pid").symlink_to("pid:[4026531836]")
    assert witness(launched, [], proc=str(tmp_path)).initial


def test_a_driver_that_serves_no_pids() -> None:
    found = place([Launched(0, 1, (10,))], [Gpu(0, "a", "H100"), Gpu(1, "b", "H100")], NONE)
    assert found.ranks[0] == Placed(1, "env")
