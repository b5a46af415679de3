"""What nodes have, and do not have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from distui.runners.doctor.difference_checks import differs
from distui.runners.doctor.examine import check

from .made import HEALTHY, ids, look


def four(**changes: Any) -> list[str]:
    """Ids and texts of findings between four nodes, of which the second is different."""
    looks = [look(name, several=True, **(changes if name == "node2" else {}))
             for name in ("node1", "node2", "node3", "node4")]  # fmt: skip
    return [f"{one.id} {one.severity} {one.value}" for one in check(looks) if not one.where]


def test_like_nodes_do_not_differ() -> None:
    assert four() == []


DIFFERENCES: list[tuple[dict[str, Any], str]] = [
        ({"training__torch": "2.12.0"}, "D-DIFF-TORCH error node2 has torch 2.12.0, 3 others have 2.13.0+cu126"),
        ({"training__cuda": "12.8"}, "D-DIFF-CUDA error node2 has CUDA 12.8 in torch, 3 others have 12.6"),
        ({"training__nccl": "2.26.2"}, "D-DIFF-NCCL error node2 has NCCL 2.26.2, 3 others have 2.27.5"),
        ({"training__python": "3.12.1"}, "D-DIFF-PYTHON warning node2 has Python 3.12, 3 others have 3.11"),
        ({"nvml__version": "550.1"}, "D-DIFF-DRIVER warning node2 has driver 550.1, 3 others have 570.172.08"),
        ({"nvml__gpus": HEALTHY["nvml"]["gpus"][:7]},
         "D-DIFF-GPUS warning node2 has GPUs: 7 × NVIDIA H100 80GB HBM3, 3 others have 8 × NVIDIA H100 80GB HBM3"),
        ({"infiniband": HEALTHY["infiniband"][:4]},
         "D-DIFF-IB warning node2 has active InfiniBand ports: 4 × 400 Gb/s, 3 others have 8 × 400 Gb/s"),
        ({"gpudirect__peermem": False},
         "D-DIFF-PEERMEM warning node2 has no nvidia_peermem, 3 others have nvidia_peermem"),
        ({"interfaces": [{**HEALTHY["interfaces"][1], "mtu": 1500}]},
         "D-DIFF-MTU warning node2 has MTU 1500, 3 others have 9000"),
        ({"env": {"NCCL_IB_TC": "106"}},
         "D-DIFF-NCCL-ENV warning node2 has NCCL settings: NCCL_IB_TC=106, 3 others have none"),
        ({"nccl_conf": {"/etc/nccl.conf": {"NCCL_IB_TC": "106"}}},
         "D-DIFF-NCCL-ENV warning node2 has NCCL settings: NCCL_IB_TC=106, 3 others have none"),
        ({"machine": "aarch64"}, "D-DIFF-ARCH warning node2 has aarch64 processors, 3 others have x86_64"),
]  # fmt: skip


def test_who_has_what() -> None:
    for changes, told in DIFFERENCES:
        assert four(**changes) == [told]


def test_what_is_no_difference() -> None:
    assert four(training__python="3.11.9") == []
    assert four(nvml=None, driver=None) == []
    assert four(nvml={"problem": "?"}, driver=None, infiniband=None) == []
    assert four(nvml={}, driver=None, infiniband=[]) == [
        "D-DIFF-GPUS warning node2 has GPUs: none, 3 others have 8 × NVIDIA H100 80GB HBM3",
        "D-DIFF-IB warning node2 has active InfiniBand ports: none, 3 others have 8 × 400 Gb/s",
    ]
    assert four(training=None, gpudirect=None, memory=None, kernel=None, interfaces=None) == []


def test_many_who_differ() -> None:
    values = {f"n{at}": "x" if at < 9 else "y" for at in range(20)}
    told = differs("v {}", values)
    assert told == "n0, n1, n2, n3, n4, n5 and 3 more have v x, 11 others have y"
    assert differs("v {}", {"a": 1, "b": 2}) == "a has v 1, b has 2"
    assert differs("v {}", {"a": 1, "b": 2, "c": 3, "d": 3}) == "a has v 1, b has v 2, 2 others have 3"
    assert differs("v {}", {"a": 1, "b": None}) == ""


def test_clocks_are_compared_with_each_other() -> None:
    """Two nodes of which each is less than a second off, and more than one apart."""
    pair = [look("a", True, ahead_s=-0.7), look("b", True, ahead_s=0.8)]
    assert ids(check(pair)) == [("D-DIFF-CLOCK", "warning")]
    assert "The clock of b is 1.5 s ahead of that of a" in check(pair)[0].text
    assert check([look("a", True, ahead_s=-0.4), look("b", True, ahead_s=0.5)]) == []


def test_uncertain_clocks_do_not_hide_certain_ones() -> None:
    looks = [look(name, True, ahead_s=ahead_s) for name, ahead_s in (("b", 0.1), ("c", 1.9))]
    looks += [
        replace(look(name, True, ahead_s=ahead_s), doubt_s=3.0)
        for name, ahead_s in (("a", 0.0), ("d", 2.0))
    ]
    told = [finding.text for finding in check(looks) if finding.id == "D-DIFF-CLOCK"]
    assert len(told) == 1
    assert told[0].startswith("The clock of c is 1.8 s ahead of that of b")


def test_one_machine_under_two_names() -> None:
    found = check([look("a", True), look("b", True, boot="a")])
    assert ids(found) == [("D-SAME-MACHINE", "note")]
