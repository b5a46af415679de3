"""Secrets are in no file of distui's, in nothing it prints and in no bundle; what runs has them all the same."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import stat
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from distui.presets.secrets import MASK
from distui.runners.reports.bundle_content import WINDOW
from distui.runners.run.model import Outcome

from .runs import EXAMPLES, Run, World, contents, kill, until
from .written import Attempt, without_agent, write

SHOWS = """
import json, os, sys, time
with open("seen-%d" % os.getpid(), "w") as file:
    json.dump([sys.argv[1:], dict(os.environ)], file)
os.rename("seen-%d" % os.getpid(), "seen.json")
while not os.path.exists("enough"):
    time.sleep(0.05)
"""
NAMES = ("HF_TOKEN", "DATABASE_URL", "PGPASSWORD", "MYSQL_PWD", "GH_PAT", "NEPTUNE_AUTH", "SENTRY_DSN", "SLACK_WEBHOOK",
         "PASSPHRASE", "JWT", "CREDENTIAL", "SSH_PRIVATE_KEY")  # fmt: skip
ARGUMENTS = (
    ("--token", "{}"), ("--token={}",), ("--hf-token", "{}"), ("--password", "{}"), ("--api_key={}",),
    ("--secret", "{}"),
    ("--db", "https://bob:{}@host/x"), ("--endpoint", "https://host/x?a=1&token={}"), ("wandb.api_key={}",),
    ("-H", "Authorization: Bearer {}"), ("--header=X-Api-Key: {}",), ("--config", '{{"api_key": "{}"}}'),
    ("--env", "WANDB_API_KEY={}"), ("--hook", "https://hooks.slack.com/services/T0/B0/{}"), ("+model.auth_token={}",),
)  # fmt: skip
URLS = ("https://me:{}@y/z", "postgres://u:{}@h/d", "https://h/p?api_key={}")


def everything(folder: Path) -> bytes:
    """The content of every file below a folder, and their names."""
    return b"\n".join((contents(folder), *(str(path).encode() for path in folder.rglob("*"))))


def seen(world: World) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of the command that runs now."""
    path = world.work / "seen.json"
    assert until(path.exists)
    argv, env = json.loads(path.read_text())
    path.unlink()
    return argv, env


@pytest.mark.real
def test_no_secret_of_a_launch_is_written_or_printed(world: World) -> None:
    """Not by a restart with another secret, nor by a new runner or a new agent; and it is never run as stars."""
    values = [
        f"Zq7Kx2mPw9Lr4Tn8Vb{number:03d}" for number in range(len(ARGUMENTS) + len(NAMES) + len(URLS))
    ]
    fresh = iter(values)
    words = [word.format(value) for form, value in zip(ARGUMENTS, fresh, strict=False) for word in form]
    env = {name: next(fresh) for name in NAMES}
    env |= {f"SERVICE_{at}": url.format(next(fresh)) for at, url in enumerate(URLS)}
    script = world.script("shows.py", SHOWS)
    half = dict(itertools.islice(reversed(env.items()), len(env) // 2))  # URLs among them
    given_env = [word for name, value in half.items() for word in ("--env", f"{name}={value}")]
    rest = {name: value for name, value in env.items() if name not in half}
    command = ("exec", "--restarts", "3", "--grace", "1", *given_env, "--", sys.executable, script, *words)
    run = world.run(*command, env=rest)
    argv, environment = seen(world)
    assert argv == words
    assert {name: environment.get(name) for name in env} == env
    assert "DISTUI_SECRET_WORDS" not in environment

    run.distui("restart", "--yes", "--env", f"NEW_TOKEN={values[0]}").fine()
    assert seen(world)[0] == words
    kill(run.runner_pid())
    assert seen(world)[0] == words  # a new runner of the same agent
    kill(run.agent_pid())
    run.distui("status").fine()
    run.eventually(lambda now: now["state"] == "running")
    run.distui("restart", "--yes").fine()
    assert seen(world)[0] == words

    bundle = world.root / "bundle.tar.gz"
    printed = "".join(
        done.out + done.err
        for done in (
            run.distui("status"), run.distui("status", "--json"), run.distui("events"), run.distui("events", "--json"),
            world.distui("ls"), run.distui("logs"), run.distui("export", str(bundle), "--force"),
        )
    )  # fmt: skip
    check_that_nobody_remembers(world, run)
    with tarfile.open(bundle) as tar:
        packed = b"".join(tar.extractfile(member).read() for member in tar if member.isfile())  # type: ignore[union-attr]
    written = everything(world.state) + everything(world.config) + everything(world.sockets)
    for value in values:
        assert value not in printed
        assert value.encode() not in written
        assert value.encode() not in packed


def check_that_nobody_remembers(world: World, run: Run) -> None:
    """Without agent, runner and ranks the run ends with a sentence that says what to type."""
    kill(run.agent_pid())
    kill(run.runner_pid())
    for pid in run.marked():
        kill(pid)
    run.distui("restart", "--yes")
    ended = run.of("RunEnded")[-1]
    assert (ended["phase"], ended["exit_code"]) == ("failed", 2)
    assert f"--token '{MASK}'" in ended["text"], ended
    assert "distui exec -- " in ended["text"], ended
    assert not (world.work / "seen.json").exists()


SAYS = """
import os, sys, time
print("step 0 loss 1.0", len(sys.argv), flush=True)
while not os.path.exists("enough"):
    time.sleep(0.05)
"""


@pytest.mark.real
@pytest.mark.torch
def test_no_secret_of_a_training_is_in_its_files_or_its_bundle(world: World) -> None:
    """As `launch` writes them, while it runs and after its end; the exporting shell has other secrets of its own."""
    value = "zq7Kx2mPw9Lr4Tn8Vb3c"
    words = [word.format(value) for form in ARGUMENTS for word in form]
    url = f"COMET_URL=https://x:{value}@y/z"
    script = world.script("says.py", SAYS)
    run = world.run("launch", "ddp", "--nproc-per-node", "1", "--env", url, "--", script, *words)
    assert run.wait("running") == 0
    plan = world.distui("plan", "ddp", "--nproc-per-node", "1", "--env", url, "--", script, *words).fine()
    shell = {"MY_TOKEN": value[::-1], "WANDB_API_KEY": value[::-1]}
    for name in ("live.tar.gz", "ended.tar.gz"):
        printed = run.distui("export", name, env=shell).fine().out
        printed += run.distui("status", "--json").out + run.distui("events", "--json").out + plan.out
        with tarfile.open(world.work / name) as tar:
            packed = b"".join(tar.extractfile(member).read() for member in tar if member.isfile())  # type: ignore[union-attr]
        written = everything(run.path) + everything(world.sockets)
        for secret in (value, value[::-1]):
            assert secret not in printed
            assert secret.encode() not in packed
            assert secret.encode() not in written
        (world.work / "enough").touch()
        assert run.wait() == 0


def test_a_known_value_is_in_no_bundle_however_it_was_printed(world: World) -> None:
    """With colours, drawn again, wrapped, across two windows in which a log is read."""
    before = "".join(f"line {number} {'x' * 90}\n" for number in range(2 * WINDOW // 100))
    out = before[: WINDOW - 9] + "\nsec sword" + "fish42 of a window\n" + before[WINDOW:]
    err = (
        "\x1b[31msword\x1b[1mfish42\x1b[0m\n10%|# |swordfish42\rsword\rfish42\r\nit is sword\n    fish42\n"
    )
    last = "RuntimeError: no user sword\x1b[1mfish42"
    attempt = Attempt(Outcome.FAILED, out, f"{err}{last}\n", text=f"rank 0 raised {last}")
    run = write(world, "exec", "--name", "printed", "--restarts", "0", "--", "false", attempts=[attempt])
    (run.path / "agent.log").write_text("distui: cannot read sword\x1b[1mfish42\n")
    run.distui("export", "out.tar.gz", env={"DB_PASSWORD": "swordfish42"}).fine()
    with tarfile.open(world.work / "out.tar.gz") as tar:
        packed = {
            member.name.partition("/")[2]: tar.extractfile(member).read()  # type: ignore[union-attr]
            for member in tar
            if member.isfile()
        }
    assert packed["node-0/attempt-001/rank-0.err"] == (
        b"\x1b[31m***\x1b[1m\x1b[0m\n10%|# |***\r***\r\r\nit is ***\n    \nRuntimeError: no user ***\x1b[1m\n"
    )
    assert b"\nsec *** of a window\n" in packed["node-0/attempt-001/rank-0.out"]
    for name, data in packed.items():
        seen = re.sub(rb"\x1b\[[0-9;]*m|\\u001b\[1m|\r", b"", data)
        assert b"swordfish42" not in seen, name


@pytest.fixture
def open_umask() -> Iterator[None]:
    """A shell whose files are for everybody."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.real
@pytest.mark.torch
@pytest.mark.usefixtures("open_umask")
def test_files_are_their_owners_alone_whatever_the_umask(world: World) -> None:
    world.env.pop("XDG_STATE_HOME")
    world.env.pop("XDG_CONFIG_HOME")
    run = world.run(
        "launch", "ddp", "--nproc-per-node", "1", "--", str(EXAMPLES / "plain_ddp.py"), "--steps", "3"
    )
    run.wait("running")
    private(world)
    run.wait()
    out = world.work / "of-the-rank"
    made = world.execute("import os\nopen(os.environ['OUT'], 'w').close()\n", "--env", f"OUT={out}")
    assert made.wait() == 0
    world.distui("presets", "new", "mine").fine()
    private(world)
    assert stat.S_IMODE(out.stat().st_mode) == 0o666  # what a training writes is the user's own


def private(world: World) -> None:
    """Every file and folder of distui's is for its owner alone, also while ranks run."""
    for top in (world.root / ".local", world.root / ".config", world.sockets):
        for path in (top, *top.rglob("*")) if top.exists() else ():
            with contextlib.suppress(FileNotFoundError):  # of an attempt that begins or ends now
                mode, is_folder = stat.S_IMODE(path.lstat().st_mode), path.is_dir()
                assert mode & 0o077 == 0, (str(path), oct(mode))
                assert mode == (0o700 if is_folder else 0o600), (str(path), oct(mode))


def test_a_state_folder_of_somebody_else_is_refused(world: World) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives a folder away")
    (world.state / "distui").mkdir()
    os.chown(world.state / "distui", 65534, 65534)
    words = ("exec", "--detach", "--", "true")
    with without_agent():
        world.distui(*words).refused(2, "belongs to another user (uid 65534)", "XDG_STATE_HOME")
    world.distui("ls").refused(2, "belongs to another user (uid 65534)")
    os.chown(world.state / "distui", 0, 0)
    (world.state / "distui").chmod(0o777)
    with without_agent():
        world.distui(*words).fine()
    assert stat.S_IMODE((world.state / "distui").stat().st_mode) == 0o700
