"""Verbs that are ended by a signal, and files whose modes keep everybody out."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import HANG_S

from distui.tui.__main__ import main as command

from ..runs import DISTUI, Done, Run, World, until
from ..written import Attempt, write

DROPPED = [
    "setpriv",
    "--bounding-set=-dac_override,-dac_read_search",
    "--inh-caps=-dac_override,-dac_read_search",
]
"""Before a command that root runs without the right to read what modes forbid."""


def as_a_user(world: World, *words: str) -> Done:
    """`distui WORDS…` for which modes count, also where root runs the tests."""
    before = DROPPED if os.geteuid() == 0 else []
    if before and (
        shutil.which("setpriv") is None or subprocess.run([*before, "true"], check=False).returncode
    ):
        pytest.skip("root cannot drop its capabilities here")
    done = subprocess.run(
        [*before, DISTUI, *words], env=world.env, cwd=world.work, capture_output=True, text=True,
        timeout=HANG_S, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def ended(world: World, name: str) -> Run:
    return write(world, "exec", "--name", name, "--", "true", attempts=[Attempt(out="one line\n")])


@pytest.mark.real
def test_what_may_not_be_read_is_named_and_hides_no_other_run(world: World, tmp_path: Path) -> None:
    hurt, good = ended(world, "hurt"), ended(world, "good")
    for name, words in (("journal.jsonl", ["events"]), ("node-0", ["logs"])):
        (hurt.path / name).chmod(0)
        assert name in as_a_user(world, *words, hurt.id).err
        (hurt.path / name).chmod(0o700)
    (hurt.path / "journal.jsonl").chmod(0)
    done = as_a_user(world, "export", hurt.id, str(tmp_path / "x.tgz"), "--json").fine()
    assert "journal.jsonl cannot be read" in done.out
    os.chmod(hurt.path, 0)
    try:
        assert "good" in as_a_user(world, "ls").fine().out
        for words in (["status", good.id], ["logs", good.id], ["rerun", good.id, "--dry-run"]):
            as_a_user(world, *words).fine()
        assert "Traceback" not in as_a_user(world, "status", hurt.id).err
    finally:
        os.chmod(hurt.path, 0o700)


@pytest.mark.real
def test_a_signal_leaves_nothing_half_written(world: World, tmp_path: Path) -> None:
    run = write(
        world, "exec", "--name", "long", "--", "true", attempts=[Attempt(out=("x" * 1000 + "\n") * 30000)]
    )
    target, made = tmp_path / "out", tmp_path / "tmp"
    target.mkdir()
    made.mkdir()
    world.distui("export", run.id, str(target / "whole.tgz")).fine()
    for words, begun in (
        (
            ["export", run.id, str(target / "x.tgz")],
            lambda: [one for one in os.listdir(target) if one != "whole.tgz"],
        ),
        (["status", str(target / "whole.tgz")], lambda: unpacked(made)),
    ):
        process = caught(world, words, begun, made)
        process.terminate()
        _, err = process.communicate(timeout=HANG_S)
        assert "Traceback" not in err
        assert process.returncode in (128 + signal.SIGTERM, 0), words
        if process.returncode:
            assert os.listdir(target) == ["whole.tgz"]
        assert not list(made.glob("distui-replay-*"))
        (target / "x.tgz").unlink(missing_ok=True)


def unpacked(made: Path) -> list[Path]:
    """The log of a bundle that is open now."""
    with contextlib.suppress(FileNotFoundError):  # it was closed just now
        return list(made.glob("distui-replay-*/**/rank-0.out"))
    return []


def caught(
    world: World, words: list[str], begun: Callable[[], object], made: Path
) -> subprocess.Popen[str]:
    """A verb in the middle of its work; it is typed again where it was through before that was seen."""
    for _ in range(20):
        process = subprocess.Popen(
            [DISTUI, *words], env={**world.env, "TMPDIR": str(made)}, cwd=world.work, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert until(lambda: begun() or process.poll() is not None, every=0.002), words  # noqa: B023
        if begun():
            return process
        process.communicate()
    raise AssertionError(f"never seen at work: {words}")


def test_a_device_is_not_replaced(world: World, tmp_path: Path) -> None:
    run = ended(world, "job")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    world.distui("export", run.id, str(pipe), "--force").refused(2, "is a device or a pipe")
    assert pipe.is_fifo()


def test_a_hostfile_without_end(world: World) -> None:
    world.script("train.py", "print()\n")
    world.distui("plan", "ddp", "--hostfile", "/dev/zero", "--", "train.py").refused(
        2, "is not a regular file"
    )


@pytest.mark.real
def test_ctrl_c_before_anything_is_loaded(world: World) -> None:
    """At whatever moment it comes once the command's own code runs."""
    traced = []
    for late_s in (0.05, 0.1, 0.15, 0.2):
        process = subprocess.Popen(
            [sys.executable, "-m", "distui.tui", "wait", "nothing"],
            env=world.env,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(late_s)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=HANG_S)
        traced += [err] if "distui/tui/cli.py" in err and "Traceback" in err else []
    assert not traced, traced[0]


def test_ctrl_c_while_a_class_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 does not let it out of a class body: it becomes the cause of a RuntimeError."""

    class Interrupted:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    def load() -> int:
        type("Loaded", (), {"field": Interrupted()})
        return 0

    monkeypatch.setattr("distui.tui.cli.main", load)
    assert command() == 130
