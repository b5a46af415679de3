"""DeepSpeed's own launcher on two nodes: the head logs in to both by ssh; the other node's part waits for its ranks."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.runs import having, until
from patience import HANG_S
from ports import free_port

from distui.presets.plan import Plan
from distui.presets.render import for_node

from .hf import HERE, needs_compiler, needs_hf
from .plans import plan

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/sbin")
SCRIPT = HERE / "deepspeed_script.py"
ADDRESSES = ["127.0.0.1", "127.0.0.2"]

pytestmark = [pytest.mark.skipif(SSHD is None, reason="there is no sshd")]


class Nodes:
    """Two addresses of the loopback behind an sshd of our own, and what runs on each."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="dt-", dir="/tmp"))
        port = free_port()
        for name in ("host", "user"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.root / name)]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        settings = [f"Port {port}", *(f"ListenAddress {one}" for one in ADDRESSES), f"HostKey {self.root}/host",
                    f"AuthorizedKeysFile {self.root}/user.pub", "StrictModes no", "UsePAM no",
                    "PasswordAuthentication no", "PermitRootLogin yes", "PidFile none"]  # fmt: skip
        (self.root / "sshd_config").write_text("\n".join(settings) + "\n")
        (self.root / "ssh_config").write_text(
            f"Host 127.0.0.*\n Port {port}\n User {getpass.getuser()}\n IdentityFile {self.root}/user\n"
            " StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n IdentitiesOnly yes\n"
        )
        # ssh asks the password database, not HOME, where its configuration is.
        (self.root / "ssh").write_text(
            f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.root}/ssh_config "$@"\n'
        )
        (self.root / "ssh").chmod(0o755)
        self.sshd = subprocess.Popen(
            [str(SSHD), "-D", "-f", str(self.root / "sshd_config")], stderr=subprocess.DEVNULL
        )
        self.parts: list[subprocess.Popen[bytes]] = []
        assert until(lambda: all(answers(one, port) for one in ADDRESSES))

    def start(self, whole: Plan, *nodes: int) -> None:
        """Each node's part, as its runner starts it."""
        for node in nodes:
            folder = self.root / f"part{node}"
            folder.mkdir()
            seat = for_node(whole, node, ADDRESSES, str(folder), str(self.root), sys.executable)
            for name, text in seat.files.items():
                (folder / name).write_text(text)
            env = {**os.environ, **seat.env, "PATH": f"{self.root}:{os.environ['PATH']}"}
            with (folder / "said").open("wb") as said:
                self.parts.append(
                    subprocess.Popen(
                        seat.argv, env=env, cwd=self.root, stdin=subprocess.DEVNULL, stdout=said,
                        stderr=said, start_new_session=True,
                    )
                )  # fmt: skip

    def said(self) -> str:
        """Everything both parts said."""
        return "".join(path.read_text() for path in sorted(self.root.glob("part*/said")))

    def close(self) -> None:
        for part in self.parts:
            if part.poll() is None:
                os.killpg(part.pid, signal.SIGKILL)
            part.wait()
        self.sshd.terminate()
        self.sshd.wait()
        shutil.rmtree(self.root, ignore_errors=True)


def answers(address: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    made = Nodes()
    try:
        yield made
    finally:
        made.close()


def whole(nodes: Nodes) -> Plan:
    """A rank on each node, which writes down what it trained with."""
    built = HERE.parents[1] / ".pytest_cache" / "torch_extensions"
    return plan(
        "ds-zero2", "launcher.kind=deepspeed", "batch.micro=8", "topology.nproc_per_node=1",
        f"env.RESULTS={nodes.root}", f"env.TORCH_EXTENSIONS_DIR={built}", nnodes=2, gpus=0, cores=2,
        script_source=SCRIPT.read_bytes(), script=str(SCRIPT), python=sys.executable, port=free_port(),
        run=nodes.root.name,
    )  # fmt: skip


needs_pdsh = pytest.mark.skipif(shutil.which("pdsh") is None, reason="there is no pdsh")


@needs_hf
@needs_compiler
@needs_pdsh
@pytest.mark.long
@pytest.mark.torch
def test_the_head_starts_both_and_both_end(nodes: Nodes) -> None:
    nodes.start(whole(nodes), 1, 0)
    assert [part.wait(HANG_S) for part in nodes.parts] == [0, 0], nodes.said()
    assert sorted(path.name for path in nodes.root.glob("?.json")) == ["0.json", "1.json"]
    assert not having(f"DISTUI_DEEPSPEED_RUN={nodes.root.name}")


@needs_hf
@needs_compiler
@needs_pdsh
@pytest.mark.long
@pytest.mark.torch
def test_a_stop_leaves_no_rank_behind(nodes: Nodes) -> None:
    made = whole(nodes)
    nodes.start(made, 1, 0)
    mark = f"DISTUI_DEEPSPEED_RUN={made.run}"
    assert until(lambda: len(having(mark)) >= 4), nodes.said()
    for part in nodes.parts:
        os.killpg(part.pid, signal.SIGTERM)
    assert [part.wait(60) for part in nodes.parts] == [143, 143], nodes.said()
    assert not having(mark)


@pytest.mark.real
def test_ssh_that_asks_is_said_before_anything_starts(nodes: Nodes) -> None:
    (nodes.root / "user.pub").write_text("")
    nodes.start(whole(nodes), 0)
    assert nodes.parts[0].wait(30) == 1
    said = nodes.said()
    assert "distui: ssh to 127.0.0.1 asks for something, or fails: let this node log in there" in said
    assert "deepspeed" not in said.lower().replace("deepspeed.sh", "")
