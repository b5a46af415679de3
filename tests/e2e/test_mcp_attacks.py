"""A server that only reads, and a model that an attacker steers: what its calls may carry out, read and hold up."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from distui.tui.arguments import HANDED_OVER
from distui.tui.mcp import tool_server, tools, verb_calls
from distui.tui.mcp.verb_calls import Take, VerbEnd, anchored

from .runs import EXAMPLES, World

DDP = str(EXAMPLES / "plain_ddp.py")
TOKENISH = "hf_abcdefghijklmnopqrstuvwxyz012345"
"""A name of a folder that looks like a secret, which is the author's choice."""
SECRET = "correct-horse-battery-9"


class Started:
    """In place of a verb's process: what it would be started with."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.env: Mapping[str, str] = {}

    async def run_verb(
        self,
        words: Sequence[str],
        take: Take,
        *,
        limit_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
    ) -> VerbEnd:
        """As of verb_calls, without a process."""
        self.words, self.env = list(words), env or {}
        take(b"{}")
        return VerbEnd(0, [])


def call(check: Callable[[Client], Awaitable[None]], run_verb: Any, *, control: bool = False) -> None:
    """Call tools of a server whose verbs are `run_verb`."""

    async def called() -> None:
        async with Client(tools.server(control=control)) as client:
            await check(client)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tool_server, "run_verb", run_verb)
        asyncio.run(called())


async def answer(client: Client, tool: str, /, **arguments: Any) -> dict[str, Any]:
    """What a tool answers, which may be an error."""
    result = await client.call_tool(tool, arguments)
    return dict(result.structured_content or {})


# --- variables ----------------------------------------------------------------------------------------------------


def test_no_variable_of_a_call_gets_into_the_environment_of_a_verb() -> None:
    """Neither one that looks like a secret nor one that does not; nor into its arguments, which all users can read."""
    given = {
        "PYTHONPATH": f"/repo/{TOKENISH}", "PATH": f"/repo/{TOKENISH}/bin:/usr/bin", "VIRTUAL_ENV": f"/repo/{TOKENISH}",
        "LD_PRELOAD": "/repo/x.so", "HOME": "/repo", "A_TOKEN": SECRET, "COLOUR": "blue",
    }  # fmt: skip
    started = Started()

    async def check(client: Client) -> None:
        calls = ("plan", {"preset": "ddp", "script": DDP}), ("launch", {"preset": "ddp", "script": DDP})
        for tool, arguments in calls:
            await answer(client, tool, **arguments, env=given)
            assert started.words[-3:] == ["--json", "--", DDP] or "--detach" in started.words
            assert list(started.env) == [HANDED_OVER]
            assert json.loads(started.env[HANDED_OVER]) == given
            assert not any(value in word for value in given.values() for word in started.words)

    call(check, started.run_verb, control=True)


def test_variables_that_are_handed_over_are_those_of_env(world: World) -> None:
    """They are in the plan as if typed, and nothing that the verb starts inherits them."""
    kept = world.script("train.py", Path(DDP).read_text())
    words = ("plan", "ddp", "--nproc-per-node", "1", "--env", "B=typed", "--json", "--", kept)
    handed = {"A_TOKEN": SECRET, "COLOUR": "blue", "PYTHONPATH": f"/repo/{TOKENISH}"}
    plan = world.distui(*words, env={HANDED_OVER: json.dumps(handed)}).fine().json()
    assert [plan["env"][name] for name in ("A_TOKEN", "COLOUR", "B")] == ["***", "blue", "typed"]
    assert plan["origins"]["A_TOKEN"] == plan["origins"]["B"]
    assert HANDED_OVER not in json.dumps(plan)
    done = world.distui(*words, env={HANDED_OVER: json.dumps({"A B": SECRET})})
    done.refused(2, "NAME=VALUE")


def test_a_name_that_no_variable_can_have_is_refused() -> None:
    """As A=B=c it would set A to "B=c"."""
    started = Started()
    there = {"preset": "ddp", "script": DDP}

    async def check(client: Client) -> None:
        for name in ("A=B", "--reachable", "", "A B"):
            for tool in ("plan", "launch"):
                for field in ("env", "nccl"):
                    said = await answer(client, tool, **there, **{field: {name: SECRET}})
                    assert f"{name!r} is not a valid name of an environment variable: take" in said["error"]
                    assert SECRET not in said["error"]
            for tool in ("restart", "rerun"):
                said = await answer(client, tool, run="train", env={name: "c"})
                assert f"{name!r} is not a valid name of an environment variable" in said["error"]
        assert started.words == []

    call(check, started.run_verb, control=True)


@pytest.mark.real
@pytest.mark.torch
def test_nothing_that_a_call_names_is_executed(world: World) -> None:
    """The ways round the list and the environment that an attacker found, with the verb as a process."""
    repository = world.work / TOKENISH
    touched = world.work / "executed"
    (repository / "bin").mkdir(parents=True)
    for program in ("bin/ssh", "bin/python", "ssh", "python3"):
        (repository / program).write_text(f"#!/bin/sh\ntouch {touched}\nexit 1\n")
        (repository / program).chmod(0o755)
    (repository / "sitecustomize.py").write_text(f"open({str(touched)!r}, 'w')\n")
    (repository / "ssh.conf").write_text(f"Host *\n ProxyCommand touch {touched}\n")
    script = world.script("train.py", Path(DDP).read_text())
    local = {"preset": "ddp", "script": str(world.work / script), "nproc_per_node": 1}
    there = {**local, "hosts": ["hostx.invalid"]}
    calls: list[dict[str, Any]] = [
        there | {"options": ["--ssh_config", str(repository / "ssh.conf")]},
        local | {"env": {"PYTHONPATH": str(repository)}},
        there | {"env": {"PATH": f"{repository}/bin:/usr/bin:/bin"}},
        local | {"env": {"VIRTUAL_ENV": str(repository)}},
        local | {"cwd": str(repository)},
        there | {"cwd": str(repository)},
    ]
    told: list[dict[str, Any]] = []

    async def check(client: Client) -> None:
        for arguments in calls:
            told.append(await answer(client, "plan", **arguments))
            assert not touched.exists(), arguments

    # As shells leave them where the variable was empty: the empty entry is the working directory.
    loose = {
        "PYTHONPATH": f"{world.root}:",
        "LD_LIBRARY_PATH": f"{world.root}:",
        "PATH": f"{world.env['PATH']}:",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
            patch.delenv(name, raising=False)
        for name, value in (world.env | loose).items():
            patch.setenv(name, value)
        call(check, verb_calls.run_verb)
    assert ["data" in each for each in told] == [False, True, False, True, True, False], told


def test_empty_and_relative_entries_are_those_of_the_servers_folder() -> None:
    env = {
        "PATH": "/usr/bin:.:bin", "LD_LIBRARY_PATH": "/x:", "PYTHONPATH": "", "VIRTUAL_ENV": ".venv",
        "COLOUR": ".", "CONDA_PREFIX": "/conda",
    }  # fmt: skip
    assert anchored(env, "/srv") == {
        "PATH": "/usr/bin:/srv/.:/srv/bin", "LD_LIBRARY_PATH": "/x:/srv/", "PYTHONPATH": "",
        "VIRTUAL_ENV": "/srv/.venv", "COLOUR": ".", "CONDA_PREFIX": "/conda",
    }  # fmt: skip


def test_a_servers_folder_that_is_gone_is_named_until_it_is_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[str] = []

    async def open_process(words: Sequence[str], *, cwd: str, **_: Any) -> None:
        began.append(cwd)
        raise FileNotFoundError(2, "not in this test")

    folder, elsewhere = tmp_path / "repository", tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(verb_calls, "STARTED_IN", str(folder))
    monkeypatch.setattr(anyio, "open_process", open_process)

    async def check(client: Client) -> None:
        moved = folder.rename(tmp_path / "moved")
        await answer(client, "ls")
        moved.rmdir()
        told = await answer(client, "ls")
        assert told["error"] == (
            f"{folder}, the folder in which this server was started, is gone: make it again, or start the server in "
            "another one"
        )
        for cwd, wanted in ((str(elsewhere), elsewhere), ("", folder)):
            wanted.mkdir()
            await answer(client, "plan", preset="ddp", script=DDP, cwd=cwd)

    call(check, verb_calls.run_verb)
    assert began == [str(tmp_path / "moved"), str(elsewhere), str(folder)]


# --- files and limits ---------------------------------------------------------------------------------------------


def test_what_may_never_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    started = Started()
    calls: list[tuple[str, dict[str, Any]]] = [
        ("diagnose", {"files": ["/dev/zero"]}), ("diagnose", {"files": [str(tmp_path), str(tmp_path / "pipe")]}),
        ("lint", {"files": ["pipe"], "cwd": str(tmp_path)}), ("lint", {"preset": "ddp", "script": "/dev/zero"}),
        ("plan", {"preset": "ddp", "script": "pipe", "cwd": str(tmp_path)}),
    ]  # fmt: skip

    async def check(client: Client) -> None:
        for tool, arguments in calls:
            told = await answer(client, tool, **arguments)
            assert "is a pipe or a device, which may never end: name a file" in told["error"], told
            assert told["exit_code"] == 2
        assert not started.words
        await answer(client, "diagnose", files=[str(tmp_path)])
        assert started.words[:3] == ["--readonly", "diagnose", str(tmp_path)]

    call(check, started.run_verb)


def test_calls_that_take_long_hold_up_their_own_tool_alone() -> None:
    begun: list[str] = []

    async def check(client: Client) -> None:
        release = anyio.Event()
        verbs["release"] = release
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(answer_to, client, "diagnose")
            while begun.count("diagnose") < tool_server.AT_ONCE:
                await anyio.lowlevel.checkpoint()
            assert "data" in await answer(client, "ls")
            assert begun.count("diagnose") == tool_server.AT_ONCE
            release.set()
        assert begun.count("diagnose") == 5

    async def answer_to(client: Client, tool: str) -> None:
        await answer(client, tool, files=["/"])

    async def run_verb(words: Sequence[str], take: Take, **_: Any) -> VerbEnd:
        begun.append(words[1])
        if words[1] == "diagnose":
            await verbs["release"].wait()
        take(b"[]")
        return VerbEnd(0, [])

    verbs: dict[str, anyio.Event] = {}
    call(check, run_verb)


# --- what a client is told ----------------------------------------------------------------------------------------


def test_hints_say_what_a_person_should_be_asked_about() -> None:
    async def check(client: Client) -> None:
        listed = (await client.list_tools()).tools
        hints = {tool.name: tool.annotations for tool in listed if tool.annotations is not None}
        assert len(hints) == len(listed)
        destructive = {name for name, about in hints.items() if about.destructive_hint}
        assert destructive == {"restart", "nccl", "signal", "stop"}
        outside = {name for name, about in hints.items() if about.open_world_hint}
        assert outside == {"ls", "diff", "plan", "lint", "doctor", "launch", "rerun"}
        assert not any(about.read_only_hint for name, about in hints.items() if name in destructive)

    call(check, Started().run_verb, control=True)


def test_a_run_that_is_called_like_a_secret_leaves_its_sentence_whole() -> None:
    async def failed(words: Sequence[str], take: Take, **_: Any) -> VerbEnd:
        return VerbEnd(3, ["No run '/etc/passwd': `distui ls` lists all runs"])

    async def check(client: Client) -> None:
        for name in ("/etc/passwd", "hf-token", "my-password"):
            told = await answer(client, "status", run=name)
            assert told["error"].startswith(f"No run '{name}': `distui ls` lists all runs")

    call(check, failed)
