"""What is executed on a node: readers of /proc, /sys and configuration space, on made trees; ports and NVML for real."""

from __future__ import annotations

import ast
import importlib
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from patience import HANG_S
from ports import free_port

from distui.runners.doctor import node_facts, session
from distui.runners.doctor.node_server import BOOT

RIG = Path(__file__).parents[2] / "rigs" / "nvml"
ACS, SERIAL = 0x000D, 0x0003


def capability(id_: int, at: int, following: int, control: int = 0) -> tuple[int, bytes]:
    """An extended capability's first bytes, and where they stand."""
    return at, struct.pack("<IHH", following << 20 | 1 << 16 | id_, 0x00FF, control)


def config(*parts: tuple[int, bytes], size: int = 4096) -> bytes:
    """A configuration space."""
    data = bytearray(size)
    for at, words in parts:
        data[at : at + len(words)] = words
    return bytes(data[:size])


SPACES = [
    (config(capability(ACS, 0x100, 0, 0x001D)), 0x001D),
    (config(capability(SERIAL, 0x100, 0x148), capability(ACS, 0x148, 0x200, 0x0000)), 0x0000),
    (config(capability(SERIAL, 0x100, 0x148), capability(0x19, 0x148, 0)), None),
    (config(), None),
    (b"\xff" * 4096, None),
    (config(size=64), None),
    (config(capability(SERIAL, 0x100, 0x100)), None),  # a list that bites its tail
    (config(capability(SERIAL, 0x100, 0xFFC), size=0x200), None),
    (config(capability(ACS, 0x100, 0, 0x001D), size=0x104), None),
]


def test_the_acs_capability() -> None:
    for number, (data, control) in enumerate(SPACES):
        assert node_facts.acs_control(data) == control, number


def device(root: Path, name: str, class_: str, data: bytes) -> None:
    path = root / "sys/bus/pci/devices" / name
    path.mkdir(parents=True)
    (path / "class").write_text(f"{class_}\n")
    (path / "config").write_bytes(data)


def test_bridges(tmp_path: Path) -> None:
    device(tmp_path, "0000:00:01.0", "0x060400", config(capability(ACS, 0x100, 0, 0x001D)))
    device(tmp_path, "0000:00:02.0", "0x060400", config())
    device(tmp_path, "0000:01:00.0", "0x030200", config(capability(ACS, 0x100, 0, 0x001D)))
    root = f"{tmp_path}/"
    assert node_facts.bridges(root) == {"bridges": 2, "acs": [{"device": "0000:00:01.0", "control": 0x1D}]}


def test_bridges_of_which_a_user_sees_nothing(tmp_path: Path) -> None:
    device(tmp_path, "0000:00:01.0", "0x060400", config(size=64))
    assert node_facts.bridges(f"{tmp_path}/") is None
    assert node_facts.bridges(f"{tmp_path}/nothing/") is None


def files(root: Path, **texts: str) -> str:
    """Files by their path, with __ for a slash and _dot_ for a dot."""
    for name, text in texts.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return f"{root}/"


def test_infiniband(tmp_path: Path) -> None:
    at = "sys__class__infiniband__mlx5_0__ports__1__"
    root = files(
        tmp_path,
        **{f"{at}state": "4: ACTIVE\n", f"{at}phys_state": "5: LinkUp\n"},
        **{f"{at}rate": "400 Gb/sec (4X NDR)\n", f"{at}link_layer": "InfiniBand\n"},
    )
    (port,) = node_facts.infiniband(root)
    assert port == {
        "device": "mlx5_0", "port": "1", "state": "ACTIVE", "physical": "LinkUp", "link_layer": "InfiniBand",
        "gbps": 400.0,
    }  # fmt: skip
    (tmp_path / "sys/class/infiniband/mlx5_0/ports/1/rate").write_text("unknown\n")
    assert node_facts.infiniband(root)[0]["gbps"] is None


def test_driver_and_gpudirect(tmp_path: Path) -> None:
    gpu = "Model: \t NVIDIA H100\nGPU UUID: \t GPU-1\nBus Location: \t 0000:19\n"
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.172.08  Release Build\nGCC version: 12\n"
    root = files(
        tmp_path, proc__driver__nvidia__version=version, proc__modules="nvidia_peermem 16384 0 - Live 0x0\n",
        proc__kallsyms="0000000000000000 T dma_buf_export\n", proc__cmdline="ro intel_iommu=on iommu=pt quiet\n",
        proc__driver__nvidia__gpus__0__information=gpu,
    )  # fmt: skip
    assert node_facts.driver(root) == {"version": "570.172.08", "open": True}
    assert node_facts.gpudirect(root) == {"peermem": True, "dma_buf": True}
    assert node_facts.iommu(root) == {"cmdline": ["intel_iommu=on", "iommu=pt"], "active": None}
    assert node_facts.kernel_gpus(root) == []
    files(tmp_path, dev__nvidia0="")
    assert node_facts.kernel_gpus(root) == [{"name": "NVIDIA H100", "uuid": "GPU-1", "bus": "0000:19"}]
    empty = files(
        tmp_path / "empty", proc__modules="nvidia 1 0 - Live 0x0\n", proc__kallsyms="0 T nothing\n"
    )
    assert node_facts.driver(empty) is None
    assert node_facts.gpudirect(empty) == {"peermem": False, "dma_buf": False}
    assert node_facts.gpudirect(f"{tmp_path}/none/") == {"peermem": None, "dma_buf": None}


def test_control_groups_of_version_2(tmp_path: Path) -> None:
    root = files(
        tmp_path, proc__self__cgroup="0::/a/b\n",
        sys__fs__cgroup__a__memory_dot_max="1048576\n", sys__fs__cgroup__a__b__memory_dot_max="max\n",
        sys__fs__cgroup__a__b__cpu_dot_max="150000 100000\n", sys__fs__cgroup__a__cpu_dot_max="max 100000\n",
    )  # fmt: skip
    assert node_facts.cgroup(root) == {"memory": 1048576, "cores": 1.5}


def test_control_groups_of_version_1(tmp_path: Path) -> None:
    root = files(
        tmp_path, proc__self__cgroup="4:memory:/a\n3:cpu,cpuacct:/a\n",
        sys__fs__cgroup__memory__a__memory_dot_limit_in_bytes="1048576\n",
        sys__fs__cgroup__memory__memory_dot_limit_in_bytes="9223372036854771712\n",
        sys__fs__cgroup__cpu__a__cpu_dot_cfs_quota_us="-1\n", sys__fs__cgroup__cpu__a__cpu_dot_cfs_period_us="100000\n",
    )  # fmt: skip
    assert node_facts.cgroup(root) == {"memory": 1048576, "cores": None}
    assert node_facts.cgroup(f"{tmp_path}/none/") == {"memory": None, "cores": None}


def test_what_of_the_environment_is_told() -> None:
    environ = {
        "NCCL_DEBUG": "INFO",
        "HOME": "/h",
        "DISTUI_RELAY_KEY": "x",
        "NCCL_TOKEN": "x",
        "PYTHONPATH": "/p",
    }
    assert node_facts.variables(environ) == {"NCCL_DEBUG": "INFO", "PYTHONPATH": "/p"}
    assert node_facts.masked("http://me:secret@proxy/") == "http://***@proxy/"


def test_nccls_own_files() -> None:
    lines = ["# all", "NCCL_IB_HCA = mlx5 # these", "", "=x", "NCCL_DEBUG=WARN"]
    assert node_facts.settings(lines) == {"NCCL_IB_HCA": "mlx5", "NCCL_DEBUG": "WARN"}


def test_a_port_that_is_in_use_and_who_has_it() -> None:
    port = free_port()
    with node_facts.listener(port):
        state = node_facts.port_state(port)
        assert (state["free"], state["owner"]["pid"]) == (False, os.getpid())
        own = Path("/proc/self/cmdline").read_bytes().split(b"\0")[0].decode()
        assert own in state["owner"]["command"]
        assert node_facts.connect("127.0.0.1", port, 5.0)["ok"]
    assert node_facts.port_state(port)["free"]
    refused = node_facts.connect("127.0.0.1", port, 5.0)
    assert (refused["ok"], refused["problem"]) == (False, "Connection refused")


def test_names_that_are_not_there() -> None:
    assert node_facts.resolve("localhost")["addresses"]
    found = node_facts.resolve("no such host")
    assert (found["addresses"], bool(found["problem"])) == ([], True)
    assert node_facts.limited(lambda: [1], 60.0) == [1]
    blocked = socket.socketpair()
    try:
        assert node_facts.limited(lambda: blocked[0].recv(1), 0.05) == "no answer within 0 s"
    finally:
        blocked[1].sendall(b"x")
        for one in blocked:
            one.close()


def test_it_runs_on_python_3_8() -> None:
    for path in (*session.MODULES, session.TORCH_CHECK):
        version = (3, 8) if path in session.MODULES else (3, 9)
        tree = ast.parse(path.read_text(), str(path), feature_version=version)
        assert any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)


@pytest.mark.real
def test_it_answers_with_every_python_that_is_here() -> None:
    names = [f"python3.{minor}" for minor in range(8, 16)]
    here = [
        name
        for name in names
        if not subprocess.run(["sh", "-c", f"{name} -c '' 2>/dev/null"], check=False).returncode
    ]
    text = session.source()
    sent = b"%d\n" % len(text) + text + b'{"op": "clock", "id": 1}\n'
    for name in (sys.executable, *here):
        words = [name, "-I", "-c", BOOT]
        done = subprocess.run(words, input=sent, capture_output=True, timeout=HANG_S, check=False)
        said = [
            json.loads(line.removeprefix("DISTUI-DOCTOR ")) for line in done.stdout.decode().splitlines()
        ]
        assert said[0] == {"ready": True}, (name, done.stderr)
        assert said[1]["id"] == 1
        assert said[1]["clock"] > 1e9


def test_it_needs_the_standard_library_alone() -> None:
    for path in session.MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert {name.name.partition(".")[0] for name in node.names} <= set(sys.stdlib_module_names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 1 or node.module in ("__future__", "typing", "collections.abc"), path


def test_what_a_login_shell_is_given_is_safe_in_single_quotes() -> None:
    """fish, csh and tcsh read these in quotes, too."""
    assert not set("'\\!\n") & set(session.FIND)


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sys.path.insert(0, str(RIG))
    try:
        build = importlib.import_module("build")
    finally:
        sys.path.remove(str(RIG))
    if build.compiler() is None:
        pytest.skip("no C compiler to build the fake driver")
    return Path(build.build(tmp_path_factory.mktemp("nvml")))


def nvml(library: Path, scenario: Path) -> dict[str, object]:
    """What a process says that asks the driver as facts do."""
    text = session.MODULES[0].read_text() + "\nreport_nvml()\n"
    env = {**os.environ, "DISTUI_NVML_LIBRARY": str(library), "DISTUI_FAKE_NVML_SCENARIO": str(scenario)}
    done = subprocess.run(
        [sys.executable, "-I", "-c", text], env=env, input="{}\n", capture_output=True, text=True, timeout=HANG_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.removeprefix("DISTUI-DOCTOR "))
    return found


@pytest.mark.real
def test_gpus_through_a_driver_library(fake: Path, tmp_path: Path) -> None:
    path = tmp_path / "scenario.txt"
    gpu = "* name NVIDIA H100\n* mem_total 85899345920\n* mem_used 3221225472\n* mem_reserved 0\n"
    path.write_text(f"sys count 2\nsys driver 570.172.08\n{gpu}")
    found = nvml(fake, path)
    assert (found["version"], found["lost"]) == ("570.172.08", [])
    gpus = found["gpus"]
    assert isinstance(gpus, list)
    assert [(gpu["name"], gpu["memory"], gpu["used"]) for gpu in gpus] == [
        ("NVIDIA H100", 80 << 30, 3 << 30)
    ] * 2
    assert nvml(tmp_path / "none.so", path) == {}
