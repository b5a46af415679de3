"""A secret value reaches the ranks, and nothing else: no file, no screen, no log of distui's own."""

from __future__ import annotations

import sys

import pytest

from ..runs import World, contents, gone

SECRET = "hunter2-aafe9"
TOKEN = "hf_0123456789tok"
LATER = "changed-4711-key"
REVEALS = (
    "import os, sys, time, hashlib\n"
    "names = ('MY_SECRET', 'HF_TOKEN', 'LATER_KEY', 'PLAIN')\n"
    "print([hashlib.sha1(os.environ.get(n, '').encode()).hexdigest()[:8] for n in names], flush=True)\n"
    "time.sleep(600)\n"
)


def digest(*values: str) -> str:
    import hashlib

    return str([hashlib.sha1(value.encode()).hexdigest()[:8] for value in values])


@pytest.mark.real
def test_secrets_stay_where_they_belong(world: World) -> None:
    env = {"HF_TOKEN": TOKEN}
    script = world.script("reveal.py", REVEALS)
    options = ("exec", "--env", f"MY_SECRET={SECRET}", "--env", "PLAIN=visible", "--restarts", "3")
    planned = world.distui(*options, "--dry-run", "--json", "--", sys.executable, script, env=env).fine()
    shown = world.distui(*options, "--dry-run", "--", sys.executable, script, env=env).fine()
    run = world.run(*options, "--", sys.executable, script, env=env)
    assert run.wait("running") == 0
    run.eventually(lambda now: run.file("node-0/attempt-001/rank-0.out"))
    assert run.file("node-0/attempt-001/rank-0.out").decode().strip() == digest(
        SECRET, TOKEN, "", "visible"
    )

    run.distui("restart", "--yes", "--env", f"LATER_KEY={LATER}").fine()
    run.eventually(lambda now: run.file("node-0/attempt-002/rank-0.out"))
    assert run.file("node-0/attempt-002/rank-0.out").decode().strip() == digest(
        SECRET, TOKEN, LATER, "visible"
    )

    status = run.distui("status", "--json").fine().out
    said = [planned.out, shown.out, status, run.distui("status").out, run.distui("events").out]
    said += [world.distui("ls", "--json").out, run.distui("events", "--json").out]
    run.stop().fine()
    said += [run.distui("status", "--json").fine().out, run.distui("events", "--json").fine().out]
    assert gone(run.agent_pid()), "it writes no more"
    for secret in (SECRET, TOKEN, LATER):
        assert not [text for text in said if secret in text]
        assert secret.encode() not in contents(world.root)
    assert "***" in planned.out + status
