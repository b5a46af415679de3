"""What a user types wrong is answered with one sentence and the right exit code, before anything is started."""

from __future__ import annotations

import json
import socket

from ..runs import World
from ..written import without_agent

WRONG: list[tuple[list[str], int, list[str]]] = [
    (["launch", "dpd", "--", "x.py"], 2, ["dpd", "ddp"]),
    (["launch", "ddp", "--set", "stratgy.kind=ddp", "--", "x.py"], 2, ["stratgy", "strategy"]),
    (
        ["launch", "ddp", "--set", "launcher.grace_s=soon", "--", "x.py"],
        2,
        ["launcher.grace_s", "soon"],
    ),
    (["launch", "ddp", "--set", "grace", "--", "x.py"], 2, ["--set", "grace", "="]),
    (["launch", "ddp", "--env", "NOVALUE", "--", "x.py"], 2, ["--env NOVALUE", "NAME=VALUE"]),
    (["launch", "ddp", "--env", "=x", "--", "x.py"], 2, ["--env", "NAME=VALUE"]),
    (["launch", "ddp", "--env", "RANK=1", "--", "x.py"], 2, ["RANK", "launcher"]),
    (["launch", "ddp", "--nccl", "DEBUG=LOUD", "--", "x.py"], 2, ["NCCL_DEBUG", "LOUD", "INFO"]),
    (["launch", "ddp", "--nccl", "DEBUGG=INFO", "--", "x.py"], 2, ["NCCL_DEBUGG", "NCCL_DEBUG"]),
    (["launch", "ddp", "--port", "0", "--", "x.py"], 2, ["--port 0", "65535"]),
    (["launch", "ddp", "--port", "70000", "--", "x.py"], 2, ["--port 70000", "65535"]),
    (["launch", "ddp", "--", "missing.py"], 2, ["missing.py"]),
    (["launch", "ddp", "-m", "--no-python", "--", "x.py"], 2, ["--module", "--no-python"]),
    (["launch", "ddp"], 2, ["--"]),
    (["launch", "ddp", "--on", "moon", "--", "x.py"], 2, ["--on moon"]),
    (["launch", "ddp", "--name", "../up", "--", "x.py"], 2, ["../up"]),
    (["launch", "ddp", "--nproc-per-node", "many", "--", "x.py"], 2, ["many"]),
    (["launch", "ddp", "--nproc-per-node", "0", "--", "x.py"], 2, ["0"]),
    (["launch", "ddp", "--nproc-per-node", "100000", "--", "x.py"], 2, ["100000"]),
    (["launch", "ddp", "--grace", "-1", "--", "x.py"], 2, ["grace"]),
    (["launch", "ddp", "--restarts", "-1", "--", "x.py"], 2, ["restart"]),
    (["exec", "--grace", "-1", "--", "true"], 2, ["grace"]),
    (["exec", "--restarts", "-1", "--", "true"], 2, ["restart"]),
    (["exec", "--grace", "nan", "--", "true"], 2, ["grace", "nan"]),
    (["exec"], 2, ["--"]),
    (["exec", "--", "nosuchcmd"], 2, ["nosuchcmd", "PATH"]),
    (["exec", "--detach", "--", "./nosuch.sh"], 2, ["./nosuch.sh", "No such file"]),
    (["exec", "--detach", "--", "./x.py"], 2, ["./x.py", "not executable"]),
    (["exec", "--dry-run", "--", "/"], 2, ["/", "directory"]),
    (["exec", "--env", "PATH=/nowhere", "--", "bash"], 2, ["bash", "PATH"]),
    (["launch", "ddp", "--no-python", "--", "nosuchcmd"], 2, ["nosuchcmd", "PATH"]),
    (["lunch", "ddp"], 2, ["lunch", "launch"]),
    (["launch"], 2, ["No script"]),
    (["launch", "ddp", "--port", "many", "--", "x.py"], 2, ["--port", "many"]),
    (["launch", "ddp", "--gpu", "--", "x.py"], 2, ["--gpu"]),
    (["signal", "nothing", "USR1", "--rank", "-1"], 2, ["--rank", "-1"]),
    (["wait", "nothing", "--timeout", "soon"], 2, ["--timeout", "soon"]),
    (["dump", "nothing", "everything"], 2, ["everything", "stacks"]),
    (["status", "nothing"], 3, ["nothing", "distui ls"]),
    (["status"], 3, ["no run yet"]),
    (["stop", "nothing", "--yes"], 3, ["nothing"]),
    (["logs", "nothing"], 3, ["nothing"]),
    (["restart", "nothing", "--yes"], 3, ["nothing"]),
    (["attach", "nothing"], 3, ["nothing"]),
    (["presets", "show", "dpd"], 2, ["dpd", "ddp"]),
    (["ls", "--", "x"], 2, ["--"]),
    (["watch", "999999999"], 3, ["999999999"]),
]


def test_one_sentence(world: World) -> None:
    world.script("x.py", "print('hello')\n")
    for words, code, said in WRONG:
        try:
            world.distui(*words).refused(code, *said)
        except AssertionError as error:
            raise AssertionError(words) from error
        assert not world.runs.exists() or not list(world.runs.iterdir()), words


def test_a_port_that_is_held(world: World) -> None:
    world.script("x.py", "print('hello')\n")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        world.distui("launch", "ddp", "--port", str(port), "--", "x.py").refused(2, str(port), "not free")
    assert not world.runs.exists() or not list(world.runs.iterdir())


def test_a_variable_that_nothing_reads_is_set_and_warned_of(world: World) -> None:
    words = ("exec", "--nccl", "FOOBAR=1", "--env", "NCCL_DEUBG=2", "--", "true")
    with without_agent():
        run = world.distui(*words[:-2], "--detach", "--json", *words[-2:]).fine()
    first, second = run.err.splitlines()
    assert "is known to read NCCL_DEUBG" in first
    assert first.endswith("Did you mean NCCL_DEBUG?")
    assert "is known to read NCCL_FOOBAR: it does nothing, unless yours is newer" in second
    env = json.loads((world.runs / run.json()["run"] / "plan.json").read_text())["env"]
    assert (env["NCCL_FOOBAR"], env["NCCL_DEUBG"]) == ("1", "2")
    script = world.script("x.py", "print('hello')\n")
    with without_agent():
        words = ("launch", "single", "--detach", "--env", "NCLL_DEBUG=1", "--", script)
        launched = world.distui(*words).fine()
    assert launched.err.count("Did you mean NCCL_DEBUG?") == len(launched.err.splitlines()) == 1
