"""Changes of the environment are checked while the old ranks live."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from each import for_each

from distui.runners.inrank import control, env_changes

from .inrank_rig import Asking, driven, execute

WAITS = ("bash", "-c", "while :; do sleep 0.1; done")
REFUSED: dict[str, Any] = {
    "no object": 5,
    "a list": ["A"],
    "a number": {"A": 5},
    "an object": {"A": {}},
    "no name": {"": "y"},
    "an equals sign": {"A=B": "y"},
    "a NUL in a value": {"A": "x\0y"},
    "a NUL in a name": {"A\0": "x"},
    "half a surrogate": {"A": "\ud800"},
    "half a surrogate in a name": {"\udfff": "x"},
    "a megabyte": {"A": "x" * 900_000},
    "one byte too many": {"A": "x" * (32 * os.sysconf("SC_PAGE_SIZE") - 2)},
    "torch's own": {"RANK": "0"},
    "torch's own, unset": {"WORLD_SIZE": None},
    "the runner's own": {"NCCL_DEBUG_FILE": "/tmp/x"},
    "distui's own": {"DISTUI_RUN_ID": "x"},
}


@for_each("changed", REFUSED.values())
def test_refused(changed: Any) -> None:
    assert env_changes.refusal(changed)


def test_what_is_not_refused_fits_into_a_request() -> None:
    asked = {f"A{number}": "x" * 100_000 for number in range(5)}
    assert not env_changes.too_long_for_request(asked)
    assert "several restarts" in env_changes.too_long_for_request({**asked, "A5": "x" * 100_000})
    assert "several restarts" in env_changes.too_long_for_request(
        {f"A{number}": "\n" * 100_000 for number in range(3)}
    )
    request = {"op": "restart", "id": 1 << 62, "until": 1e9 / 3, "env": asked, "shown": asked}
    assert len(msgspec.json.encode(request)) < control.MOST_LINE


@pytest.mark.real
def test_the_longest_value_that_linux_takes_is_taken() -> None:
    value = "x" * (env_changes.LONGEST - 3)
    assert not env_changes.refusal({"A": value})
    assert subprocess.run(["/bin/true"], env={"A": value}, check=True).returncode == 0
    assert env_changes.refusal({"A": value + "x"})
    with pytest.raises(OSError, match="too long"):
        subprocess.run(["/bin/true"], env={"A": value + "x"}, check=True)


def test_the_sum_is_what_the_stack_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_STACK)
    env = {f"V{number}": "x" * 100_000 for number in range(15)}
    assert not env_changes.too_long_for_process(env, ["a"])
    resource.setrlimit(resource.RLIMIT_STACK, (4 << 20, before[1]))
    try:
        assert "1048576" in env_changes.too_long_for_process(env, ["a"])
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, before)


@pytest.mark.real
async def test_a_runner_refuses_and_its_ranks_live() -> None:
    """Each refusal is a sentence; the ranks, the runner and its log know nothing of it."""
    async with driven(execute(*WAITS)) as run:
        await run.until(lambda s: s.phase == "running")
        asking = Asking(Path(run.state.runner_socket))
        for changed in REFUSED.values():
            for op in ("env", "restart"):
                answer = asking.ask(op, env=changed)
                assert answer["ok"] is False, changed
                assert answer["text"]
        many = {f"V{number}": "x" * 100_000 for number in range(9)}
        for part in range(3):
            last = asking.ask("env", env={f"P{part}{name}": value for name, value in many.items()})
        assert last["ok"] is False, "what waits for the next attempt counts, too"
        assert "ulimit -s" in last["text"]
        assert asking.ask("stop", grace_s="soon")["ok"] is False
        assert asking.ask("env", env={"GOOD": "1"}, shown={"GOOD": 5})["ok"] is True
        asking.close()
        assert run.state.attempt == 1
        assert (await run.restart(SEEN="yes")).ok, "what was refused has left nothing behind"
        assert run.state.attempts[-1].env_diff["GOOD"] == "***"
        assert "Traceback" not in (run.path / "runner.log").read_text()


def test_a_secret_is_masked_and_the_limit_of_files_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    variables = env_changes.Variables()
    variables.note({"env": {"MY_TOKEN": "secret", "A": "1", "B": None}, "shown": {"A": "1"}})
    assert variables.take() == {"MY_TOKEN": "***", "A": "1"}
    variables.note({"env": {"MY_TOKEN": "other"}})
    assert variables.take() == {"MY_TOKEN": "***"}
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2048, 4096))
    monkeypatch.setattr(os, "listdir", lambda _: ["0"] * 2048)
    assert env_changes.too_few_files().endswith("raise ulimit -n above 2048 and launch again")


def test_a_hundred_callers_at_once_are_all_heard(socket_folder: Path) -> None:
    """The kernel keeps them until they are accepted: nobody is sent away because others came first."""
    server = control.listen(str(socket_folder / "s"))
    callers = [socket.socket(socket.AF_UNIX) for _ in range(100)]
    try:
        for caller in callers:
            caller.setblocking(False)
            caller.connect(str(socket_folder / "s"))
    finally:
        for one in (server, *callers):
            one.close()
