"""What follows from the facts of one node: made facts, one change each."""

from __future__ import annotations

from typing import Any

from distui.runners.doctor import network_checks
from distui.runners.doctor.examine import check
from distui.runners.doctor.node_checks import GIB, MIB

from .made import GPU, HEALTHY, ids, look

WITHOUT_GPUS: dict[str, Any] = {
    "nvml": {}, "driver": None, "infiniband": [], "training__cuda": None, "training__nccl": None,
    "training__gpus": [],
}  # fmt: skip
PORTS = HEALTHY["infiniband"]


def test_nothing_is_found_on_a_node_that_is_well() -> None:
    for several in (False, True):
        for changes in ({}, WITHOUT_GPUS):
            assert check([look(several=several, **changes)]) == []


def test_nothing_is_said_of_what_is_unknown() -> None:
    """An older end on the node, or a kernel that tells less, makes no findings by itself."""
    unknown: dict[str, Any] = dict.fromkeys(HEALTHY)
    found = ids(check([look(several=True, **unknown)]))
    # Without an answer of the training's interpreter, without interfaces and without /dev/shm nothing can start.
    assert found == [("D-PYTHON", "error"), ("D-SHM-NONE", "error"), ("D-NIC-NONE", "error")]


CASES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"training": None, "training_problem": "nope is not an executable"}, "D-PYTHON", "error", ""),
    ({"training__torch": None}, "D-TORCH-NONE", "error", "none"),
    ({"training__torch": None, "training__problem": "ImportError: libcudart.so.12"}, "D-TORCH-BROKEN", "error",
     "ImportError: libcudart.so.12"),
    ({"training__torch": "2.6.0"}, "D-TORCH-OLD", "error", "2.6.0"),
    ({"training__distributed": False}, "D-TORCH-DISTRIBUTED", "error", "2.13.0+cu126"),
    ({"nvml": {"problem": "the library and its kernel driver differ"}, "training": HEALTHY["training"]}, "D-DRIVER",
     "error", "the library and its kernel driver differ"),
    ({"nvml__lost": [3]}, "D-GPU-LOST", "error", "GPU 3"),
    ({"nvml__gpus": [GPU, {**GPU, "used": 30 * GIB}]}, "D-GPU-BUSY", "warning", "30.0 GiB"),
    ({"training__cuda": None, "training__gpus": []}, "D-CUDA-NONE", "error", "2.13.0+cu126"),
    ({"training__gpus": []}, "D-CUDA-UNUSABLE", "error", "CUDA 12.6, driver 570.172.08"),
    ({"training__arches": ["sm_100", "compute_120"]}, "D-CUDA-ARCH", "error", "sm_100 compute_120"),
    ({"training__nccl": None}, "D-NCCL-NONE", "error", "2.13.0+cu126"),
    ({"nccl_conf": {"/etc/nccl.conf": {"NCCL_IB_HCA": "mlx5"}}}, "D-NCCL-CONF", "note", "NCCL_IB_HCA"),
    ({"env": {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "1"}}, "D-NCCL-OFF", "warning", "NCCL_P2P_DISABLE=1"),
    ({"env": {"NCCL_DEBUG": "info"}}, "D-NCCL-LOUD", "note", "NCCL_DEBUG=INFO"),
    ({"infiniband": [*PORTS[:7], {**PORTS[7], "state": "DOWN", "physical": "Polling"}]}, "D-IB-DOWN", "warning",
     "DOWN, Polling"),
    ({"infiniband": [*PORTS[:7], {**PORTS[7], "gbps": 100.0}]}, "D-IB-RATE", "warning", "mlx5_7 100 Gb/s"),
    ({"gpudirect": {"peermem": False, "dma_buf": True}, "driver": {"version": "570", "open": False}}, "D-GPUDIRECT",
     "warning", "nvidia_peermem is not loaded"),
    ({"pci": {"bridges": 1, "acs": [{"device": "0000:20:00.0", "control": 0x1D}]}}, "D-ACS", "warning",
     "0000:20:00.0 0x001d"),
    ({"pci": None}, "D-ACS-UNKNOWN", "note", "n/a"),
    ({"iommu": {"cmdline": ["intel_iommu=on"], "active": True}}, "D-IOMMU", "warning", "intel_iommu=on"),
    ({"nvml__no_p2p": [[0, 1], [0, 2]]}, "D-P2P", "note", "0-1, 0-2"),
    ({"shm": None}, "D-SHM-NONE", "error", "none"),
    ({"shm": {"total": 64 * MIB, "free": 64 * MIB}}, "D-SHM-SMALL", "error", "64.0 MiB free of 64.0 MiB"),
    ({"shm": {"total": 512 * MIB, "free": 512 * MIB}}, "D-SHM-SMALL", "warning", "512.0 MiB"),
    ({"limits__memlock": [8 * MIB, 8 * MIB]}, "D-MEMLOCK", "error", "8.0 MiB"),
    ({"limits__memlock": [GIB, GIB]}, "D-MEMLOCK", "warning", "1.0 GiB"),
    ({"limits__nofile": [1024, 65536]}, "D-NOFILE", "warning", "1024"),
    ({**WITHOUT_GPUS, "limits__nofile": [1024, 65536]}, "D-NOFILE", "note", "1024"),
    ({"limits__nproc": [500, 500]}, "D-NPROC", "warning", "500"),
    ({"disks": [{**HEALTHY["disks"][2], "there": False, "free": None}]}, "D-WORKDIR", "warning", "/cwd"),
    ({"disks": [{**HEALTHY["disks"][0], "writable": False}]}, "D-DISK-READONLY", "error", "/runs"),
    ({"disks": [{**disk, "free": 100 * MIB} for disk in HEALTHY["disks"]]}, "D-DISK-FULL", "error",
     "100.0 MiB free"),
    ({"disks": [{**HEALTHY["disks"][1], "free": 5 * GIB}]}, "D-DISK-FULL", "warning", "5.0 GiB free"),
    ({"ahead_s": -3.2}, "D-CLOCK", "warning", "-3.200 s ± 0.001 s"),
    ({"cgroup__memory": 64 * GIB}, "D-CGROUP-MEMORY", "note", "64.0 GiB"),
    ({"cgroup__cores": 12.0}, "D-CGROUP-CPU", "note", "12 cores"),
    ({"cgroup__cores": 4.0}, "D-CGROUP-CPU", "warning", "4 cores"),
    ({"several": True, "interfaces": HEALTHY["interfaces"][:1]}, "D-NIC-NONE", "error", "none"),
    ({"several": True, "interfaces": [{**HEALTHY["interfaces"][1], "mbps": 1000}]}, "D-NIC-SLOW", "warning",
     "1000 Mb/s"),
    ({"env": {"NCCL_SOCKET_IFNAME": "ib"}}, "D-NIC-IFNAME", "error", "NCCL_SOCKET_IFNAME=ib"),
    ({"several": True, "dns__own__addresses": [], "dns__own__problem": "no such name"}, "D-DNS-OWN", "error",
     "node-a"),
    ({"dns__own__addresses": [], "dns__own__problem": "no such name"}, "D-DNS-OWN", "warning", "node-a"),
    ({"several": True, "dns__own__addresses": ["127.0.1.1"]}, "D-DNS-LOOPBACK", "warning", "127.0.1.1"),
    ({"several": True, "dns__own__addresses": ["127.0.1.1"], "env": {"GLOO_SOCKET_IFNAME": "eth0"}},
     "D-DNS-LOOPBACK", "note", "127.0.1.1"),
    ({"dns__own__addresses": ["127.0.1.1", "::1"]}, "D-DNS-LOOPBACK", "note", "127.0.1.1, ::1"),
    ({"dns__own__seconds": 5.0}, "D-DNS-SLOW", "warning", "5.0 s"),
    ({"port": {"port": 29400, "free": False, "problem": "Address already in use",
               "owner": {"pid": 7, "command": "python train.py"}}}, "D-PORT-BUSY", "error", "pid 7: python train.py"),
    ({"port": {"port": 80, "free": False, "problem": "Permission denied", "owner": None}}, "D-PORT-BUSY", "error",
     "Permission denied"),
]  # fmt: skip


def test_one_thing_is_wrong() -> None:
    for changes, id_, severity, value in CASES:
        everything = check([look(**changes)])
        found = [one for one in everything if one.id == id_]
        assert {(one.severity, one.where, one.value) for one in found} == {(severity, "a", value)}, id_
        assert all(one.text.endswith((".", "?")) and "None" not in one.text for one in found), id_
        assert all(one.remedy.endswith(".") for one in found if one.severity != "note"), id_
        others = {one.id for one in everything} - {id_}
        # Of a driver that does not answer follows that torch sees no GPU, and nothing else follows from anything.
        assert others <= {"D-NCCL-NONE", "D-GPUDIRECT", "D-IOMMU", "D-ACS-UNKNOWN"}, (id_, others)


def test_a_disk_that_holds_all_three_is_named_once() -> None:
    full = [{**disk, "free": MIB} for disk in HEALTHY["disks"]]
    assert ids(check([look(disks=full)])) == [("D-DISK-FULL", "error")]


BINARIES = [
    (["sm_80"], [8, 6], True),
    (["sm_86"], [8, 0], False),
    (["sm_90a"], [9, 0], True),
    (["sm_80"], [9, 0], False),
    (["compute_80"], [12, 0], True),
    (["compute_90"], [8, 0], False),
    ([], [9, 0], True),
]
CHOSEN = [
    ("eth", True, ["eth0", "eth1"]),
    ("=eth", True, []),
    ("=eth1", True, ["eth1"]),
    ("^eth,docker", True, ["ib0"]),
    ("ib0:1,eth1", True, ["eth1", "ib0"]),
    ("eth", False, []),
    ("eth0,ib0", False, ["eth0", "ib0"]),
]


def test_which_binaries_run_on_which_gpu() -> None:
    for arches, capability, fits in BINARIES:
        gpus = [{"name": "X", "memory": 1, "capability": capability}]
        found = check([look(training__arches=arches, training__gpus=gpus)])
        assert ids(found) == ([] if fits else [("D-CUDA-ARCH", "error")]), (arches, capability)


def test_interfaces_as_nccl_and_gloo_choose_them() -> None:
    for text, prefix, chosen in CHOSEN:
        assert network_checks.chosen(text, ["docker0", "eth0", "eth1", "ib0"], prefix) == chosen, text


def test_a_node_that_does_not_reach_the_head() -> None:
    said = {
        "ok": False,
        "problem": "timed out",
        "resolved": {"name": "h", "addresses": [], "problem": "unknown"},
    }
    found = list(network_checks.reach(look("b"), "a", "10.0.0.1", 29400, said))
    assert ids(found) == [("D-PORT-UNREACHABLE", "error"), ("D-DNS-HEAD", "note")]
    assert "cannot connect to a at 10.0.0.1:29400 (timed out)" in found[0].text
    well = {"ok": True, "problem": "", "resolved": {"name": "h", "addresses": ["10.0.0.1"], "problem": ""}}
    assert list(network_checks.reach(look("b"), "a", "10.0.0.1", 29400, well)) == []


def test_a_node_that_is_reached_by_its_loopback() -> None:
    local, other = look("a", ssh_address="127.0.0.1"), look("b")
    assert [(one.id, one.where, one.value) for one in network_checks.addresses([other, local])] == [
        ("D-ADDRESS", "a", "127.0.0.1")
    ]
    assert network_checks.addresses([local]) == []
    assert network_checks.addresses([local, look("c", boot="a", ssh_address="127.0.0.2")]) == []
    assert network_checks.addresses([look("a", ssh_address=None, hostname="a"), other]) == []
