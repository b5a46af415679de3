"""Runs that another machine keeps, through a real sshd: its list, and its cockpit in this terminal."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from e2e.hostile import EVIL, harmless
from e2e.runs import World
from e2e.runs import world as world
from e2e.screen import Screen

from .children import Pipes, Programs
from .sshd import SSHD
from .two_hosts import BIN, TwoHosts, two_hosts, until

needs_sshd = pytest.mark.skipif(SSHD is None, reason="no sshd here: apt-get install openssh-server")
TICKS = 'while :; do echo "tick of $DISTUI_RUN_ID"; sleep 0.2; done'


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    """alpha keeps a run that nobody here knows of."""
    with two_hosts() as made:
        there(made, "exec", "--name", "far", "--detach", "--grace", "2", "--", "/bin/sh", str(script(made)))
        yield made


def script(hosts: TwoHosts) -> Path:
    path = hosts.root / "ticks.sh"
    path.write_text(TICKS)
    return path


def there(hosts: TwoHosts, *words: str) -> str:
    """What distui says on alpha, after the banner of the login."""
    command = ["ssh", "-F", str(hosts.config), "alpha", "distui", *words]
    done = subprocess.run(
        command, env=hosts.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.removeprefix("welcome to 127.0.0.1\n")


class Answering(Screen):
    """Says where its cursor is, as terminals do: the cockpit waits for that before it paints on."""

    def __init__(self, argv: list[str], hosts: TwoHosts) -> None:
        super().__init__(argv, hosts.env, hosts.code, 100, 30)
        self._screen.write_process_input = self.press


@contextmanager
def attached(hosts: TwoHosts, *words: str) -> Iterator[Screen]:
    """`distui attach --host alpha` with more words, in a terminal."""
    argv = [
        str(BIN / "distui"),
        *words[:-1],
        "attach",
        "--ssh-config",
        str(hosts.config),
        "--host",
        "alpha",
    ]
    oriented = hosts.home["alpha"] / "state/distui/oriented"
    oriented.touch()
    screen = Answering([*argv, words[-1]], hosts)
    try:
        yield screen
    finally:
        screen.close()


def listed(hosts: TwoHosts) -> list[tuple[str, str, str]]:
    done = hosts.distui("ls", "--json", "--ssh-config", str(hosts.config), "--host", "alpha")
    assert (done.returncode, done.stderr) == (0, "")
    return [(run["on"], run["name"], run["state"]) for run in json.loads(done.stdout)]


@needs_sshd
@pytest.mark.real
def test_the_cockpit_of_another_machine_shows_and_steers_its_run(hosts: TwoHosts) -> None:
    assert json.loads(hosts.distui("ls", "--json").stdout) == []
    assert until(lambda: listed(hosts) == [("alpha", "far", "running")])
    with attached(hosts, "far") as screen:
        text = screen.until(lambda text: "far" in text and "RUNNING" in text and "tick of" in text)
        assert "r0" in text
        screen.press("x")
        screen.until("Stop far?")
        screen.press("y")
        screen.until("STOPPED")
        screen.press("q")
        assert screen.ended() == 0
    assert listed(hosts) == [("alpha", "far", "stopped")]
    assert until(lambda: not hosts.processes("alpha"))


@needs_sshd
@pytest.mark.real
def test_a_hostile_file_there_does_not_act_on_the_terminal_here_and_leaving_it_leaves_the_run(
    hosts: TwoHosts,
) -> None:
    """Whoever keeps a run there may have written anything into its files."""
    (file,) = (hosts.home["alpha"] / "state" / "distui" / "runs").glob("*/run.json")
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "host": EVIL}))
    with attached(hosts, "--readonly", record["run"]) as screen:
        screen.until(lambda text: "RUNNING" in text and "tick of" in text)
        screen.press("x")
        screen.until("read-only")
        screen.hang_up()
        written = screen.written.decode(errors="replace")
    assert not re.search("[\x80-\x9f\u200b\u202e\u2066\ufeff\ufff9\U000e0041]", written)
    assert "52;c;" not in written
    assert until(lambda: not [one for one in hosts.processes("alpha").values() if "attach" in one])
    assert [state for _, _, state in listed(hosts)] == ["running"]


ROW = {
    "run": f"r{EVIL}",
    "name": EVIL,
    "state": EVIL,
    "preset": [EVIL],
    "attempt": {EVIL: 1},
    "ranks": "9" * 5000,
}


NO_LIST = "does not list its runs"
ANSWERS = {
    "rows": json.dumps([ROW, {**ROW, "created": 1e999}, {**ROW, "created": EVIL}, {"on": "beta"}]),
    "no rows": json.dumps([EVIL]),
    "cut": json.dumps([ROW])[:-1],
    "deep": "[" * 200_000,
    "number": f'[{{"created": {"9" * 5000}}}]',
    "text": EVIL,
    "empty": "",
}


def test_a_machine_that_answers_anything(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever owns that machine owns what is called distui there."""
    programs = Programs(monkeypatch)

    def asked(answer: str, code: int, *words: str) -> tuple[int, str]:
        async def ssh(argv: tuple[str, ...], pipes: Pipes) -> int:
            pipes.stdout.write(answer.encode())
            pipes.stderr.write(answer.encode())
            return code

        programs.put("ssh", ssh)
        done = world.distui("ls", "--host", "alpha", *words, terminal=True)
        shown = done.out + done.err
        harmless(shown)
        return done.code, shown

    for name, answer in ANSWERS.items():
        code, wanted = (0, "alpha  ") if name == "rows" else (4, NO_LIST)
        for words in ((), ("--json",)):
            ended, shown = asked(answer + "\n", 0, *words)
            assert ended == code, (name, words, shown)
            assert words or wanted in shown, (name, shown)
            assert len(shown.splitlines()) <= 6, (name, words, shown)
    code, shown = asked(EVIL, 3)
    assert (code, shown.startswith("distui: alpha: ")) == (4, True), shown
