"""What cannot be executed is refused in a sentence, and nothing is refused that the kernel would execute."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from distui.runners.node.executable import refusal
from distui.tui.cli import main


def put(path: Path, data: bytes, mode: int = 0o755) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)
    return path


REFUSED = [
    (b"#!/bin/sh\n", 0o644, "not executable: `chmod +x ./x`"),
    (b"echo hi\n", 0o755, "no #! line: write `bash ./x`"),
    (b"", 0o755, "no #! line"),
    (b"#!\n", 0o755, "names no interpreter"),
    (b"#!/nonexistent/python3 -u\n", 0o755, "names /nonexistent/python3"),
    (b"#!/usr/bin/env nosuchinterpreter\n", 0o755, "names nosuchinterpreter, which is not on PATH"),
    (b"#!/bin/sh\r\necho hi\r\n", 0o755, "carriage return"),
]


@pytest.mark.real
def test_files_that_the_kernel_refuses(tmp_path: Path) -> None:
    for data, mode, words in REFUSED:
        put(tmp_path / "x", data, mode)
        found = refusal("./x", str(tmp_path), {"PATH": "/usr/bin:/bin"}) or ""
        assert found.startswith("cannot start ./x: "), data
        assert words in found, data
        try:
            done = subprocess.run(["./x"], cwd=tmp_path, check=False, capture_output=True)
            assert done.returncode == 127, data
        except OSError:
            pass  # as it was predicted


def test_places_that_hold_no_program(tmp_path: Path) -> None:
    path = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    put(tmp_path / "here.sh", b"#!/bin/sh\n")
    (tmp_path / "dangling").symlink_to("nowhere")
    for word, words in (
        ("nosuchcmd", "no such program on PATH"),
        ("here.sh", "`./here.sh` is the file here"),
        ("/nowhere/x", "No such file or directory"),
        ("./dangling", "No such file or directory"),
        (".", "no such program"),
        ("/tmp", "it is a directory"),
        ("./here.sh/x", "Not a directory"),
        ("/dev/null", "not a regular file"),
    ):
        assert words in (refusal(word, str(tmp_path), path) or ""), word


def test_the_path_is_that_of_the_run_and_searched_as_execvp_does(tmp_path: Path) -> None:
    put(tmp_path / "a" / "tool", b"#!/nonexistent\n")
    put(tmp_path / "b" / "tool", b"#!/bin/sh\n")
    (tmp_path / "c" / "tool").mkdir(parents=True)
    env = {"PATH": f"{tmp_path}/a:{tmp_path}/c:{tmp_path}/b"}
    assert refusal("tool", "/", env) is None
    assert "names /nonexistent" in (refusal("tool", "/", {"PATH": f"{tmp_path}/a"}) or "")
    assert refusal("sh", "/", {}) is None
    assert refusal("tool", str(tmp_path), {"PATH": "b"}) is None  # relative to where it starts


def test_what_runs_is_not_refused(tmp_path: Path) -> None:
    env = {"PATH": "/usr/bin:/bin"}
    put(tmp_path / "x", b"#!/usr/bin/env -S python3 -u\n")
    put(tmp_path / "y", b"#! /bin/sh -e\n")
    put(tmp_path / "z", b"MZ\0\0")  # binfmt_misc may know it
    for word in (sys.executable, "true", "bash", "./x", "./y", "./z", "env"):
        assert refusal(word, str(tmp_path), env) is None, word


def test_a_launch_by_skypilots_own_program_names_the_verb_that_watches_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert main(["exec", "-n", "--", "sky", "launch", "-c", "train", "x.yaml"]) == 2
    text = capsys.readouterr().err
    assert "PATH. distui does not see the nodes" in text
    assert "`distui launch --task FILE`" in text
