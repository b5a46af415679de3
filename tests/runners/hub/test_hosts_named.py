"""Hosts as users write them, what they say of themselves, and what is made of both."""

from __future__ import annotations

import io
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distui.presets.request import Named
from distui.runners.launch import hosts
from distui.runners.launch.hosts import HostFacts, Wanted, attach_words
from distui.runners.node import package
from distui.runners.run.errors import RunError
from distui.runners.run.wire.ssh import HostError, Way

FOUND = HostFacts(
    destination="a", hostname="node-a", boot="1", address="10.0.0.1", skew_s=0.0, cores=8, gpus=8,
    agent="python3.11", torch="2.13.0", python="/usr/bin/python", work=True, script=True,
)  # fmt: skip


def test_hosts_of_a_line() -> None:
    found = hosts.from_words(" a, me@b.example ,10.0.0.3,")
    assert [host.destination for host in found] == ["a", "me@b.example", "10.0.0.3"]


WRONG_LINES = [
    ("", "--hosts names no host"),
    ("a,b,a,b,c", "--hosts names a, b more than once: each host is one node"),
    ("-oProxyCommand=x", "host '-oProxyCommand=x' begins with '-'"),
    ("a,b c", "host 'b c' is not a host name"),
    ("a;reboot", "host 'a;reboot' is not a host name"),
]


def test_what_no_hosts_are() -> None:
    for text, sentence in WRONG_LINES:
        with pytest.raises(RunError) as caught:
            hosts.from_words(text)
        assert str(caught.value).startswith(sentence)


def test_a_file_as_mpi_and_deepspeed_have_it(tmp_path: Path) -> None:
    path = tmp_path / "hostfile"
    path.write_text("# two nodes\n\na slots=8\n  b   slots=8 max_slots=8  # the other\n")
    found = hosts.from_file(path)
    assert found == [Named("a", 8), Named("b", 8)]
    assert hosts.slots(found) == 8
    assert hosts.slots([Named("a"), Named("b")]) is None


WRONG_FILES = [
    ("a\nb slots=many\n", "line 2: 'slots=many' is not understood: write HOST, or HOST slots=8"),
    ("a 8\n", "line 1: '8' is not understood"),
    ("a slots=0\n", "line 1: slots=0 starts no rank on a: take the line out"),
    ("a\na\n", "names a more than once"),
    ("# nobody\n", "names no host"),
]


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "hostfile"
    for text, sentence in WRONG_FILES:
        path.write_text(text)
        with pytest.raises(RunError) as caught:
            hosts.from_file(path)
        assert sentence in str(caught.value)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be read: No such file"):
        hosts.from_file(tmp_path / "gone")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(RunError, match="cannot be read: it is not text"):
        hosts.from_file(tmp_path / "binary")


def test_slots_that_differ_are_refused() -> None:
    with pytest.raises(RunError, match=r"slots differ \(a 8, b 4\)"):
        hosts.slots([Named("a", 8), Named("b", 4)])
    with pytest.raises(RunError, match=r"slots differ \(a 8, b none\)"):
        hosts.slots([Named("a", 8), Named("b")])


@pytest.mark.real
def test_the_script_asks_this_machine(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    head = f"work={tmp_path}\nscript=train.py\npython=\n"
    said = subprocess.run(
        ["sh"], input=(head + hosts.SCRIPT).encode(), capture_output=True, timeout=60, check=True
    )
    found = hosts.read("here", b"welcome\n" + said.stdout, 0, 2e10)
    assert (found.work, found.script, bool(found.agent)) == (True, True, True)
    assert found.cores >= 1
    assert found.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_what_is_no_answer() -> None:
    for said in (b"", b"This account is not available.\n", b"DISTUI-HOST/1\nhostname=x\n"):
        with pytest.raises(HostError, match="x runs no command in a shell"):
            hosts.read("x", said, 0, 1)


LACKING: list[tuple[dict[str, Any], str]] = [
    ({"agent": ""}, "a has no Python 3.11 or newer for distui's agent, and no uv: install one there"),
    ({"work": False}, "a has no directory /w: copy it there, or give --workdir DIR to have it copied"),
    ({"script": False}, "a has no t.py in /w: copy it there, or give --workdir DIR"),
    (
        {"torch": ""},
        "a has no torch in /usr/bin/python: name the training environment's interpreter with --python",
    ),
    ({}, ""),
]


def test_what_a_host_lacks_is_said() -> None:
    for lacks, sentence in LACKING:
        assert hosts.problem(replace(FOUND, **lacks), Wanted("/w", "t.py")) == sentence


def test_what_the_user_should_know() -> None:
    other = replace(FOUND, destination="b", gpus=4, skew_s=-7.0, boot="1")
    assert hosts.notes([FOUND, other]) == [
        "a, b are one machine: they share its cores and GPUs.",
        "The hosts differ in gpus: a 8, b 4.",
        "The clock of b is 7 s behind.",
    ]
    assert hosts.notes([FOUND, replace(FOUND, destination="b", boot="2")]) == []


def test_addresses_are_those_that_ssh_came_to() -> None:
    other = replace(FOUND, destination="b", boot="2", address="", hostname="node-b")
    assert hosts.addresses([FOUND, other]) == (["10.0.0.1", "node-b"], "")
    assert hosts.addresses([FOUND, other], "192.168.0.9")[0] == ["192.168.0.9", "node-b"]
    _, problem = hosts.addresses([replace(FOUND, destination="localhost", address="127.0.0.1"), other])
    assert problem.startswith("localhost is this machine's own loopback")


@pytest.mark.real
def test_a_git_checkout_goes_without_what_git_ignores(tmp_path: Path) -> None:
    for name in ("train.py", "data.bin", "sub/model.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    plain = members(package.packed(tmp_path, "run", package.code(tmp_path)))
    assert plain == {"run", "run/data.bin", "run/sub", "run/sub/model.py", "run/train.py"}
    (tmp_path / ".gitignore").write_text("*.bin\n")
    subprocess.run(["git", "init", "-q", tmp_path], check=True, timeout=30)
    hook = ["git", "-C", str(tmp_path), "config", "core.fsmonitor", "touch hook-was-executed; false"]
    subprocess.run(hook, check=True, timeout=30)
    kept = members(package.packed(tmp_path, "run", package.code(tmp_path)))
    assert kept == {"run", "run/.gitignore", "run/sub/model.py", "run/train.py"}


def members(data: bytes) -> set[str]:
    """Names in a tar; a bare directory is named as its files are."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {name.removesuffix("/.") for name in archive.getnames()}


def test_attach_elsewhere_is_ssh_with_a_terminal() -> None:
    words = attach_words(Way("alpha", ("-F", "/c")), "/home-of/.distui/distui", "train", "--readonly")
    assert words[:4] == ["ssh", "-F", "/c", "-t"]
    assert words[words.index("--") + 1 :] == [
        "alpha",
        "/home-of/.distui/distui",
        "--readonly",
        "attach",
        "train",
    ]
    with pytest.raises(RunError, match="cannot be sent through ssh"):
        attach_words(Way("alpha"), "distui", "$(reboot)")
