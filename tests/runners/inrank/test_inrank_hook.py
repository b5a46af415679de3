"""The hook in a real Python process, started by the real sitecustomize."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from each import for_each

from distui.runners.run.processes import catches

from .inrank_rig import INRANK, LIMIT_S, Asking, eventually, hello_of, rank

WAITS = "import sys; print('begun', flush=True); sys.stdin.read()"


def interpreters() -> list[str]:
    """This Python, and an older and a newer one where they are installed and start."""
    found = [sys.executable]
    for name in filter(shutil.which, ("python3.9", "python3.13")):
        command = [name, "-c", "import sys; print(sys.executable)"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        found += [done.stdout.strip()] if done.returncode == 0 else []
    return found


@pytest.fixture
def place(own_directories: Path) -> Path:
    """A directory with a short path, for sockets."""
    path = own_directories / "rank"
    path.mkdir()
    return path


@pytest.mark.real
def test_it_answers_what_the_agent_asks(place: Path) -> None:
    for python in interpreters():
        answers(place, python)


def answers(place: Path, python: str) -> None:
    with rank(place, WAITS, python=python, WORLD_SIZE="2") as started:
        asking = Asking(started.socket)
        hello = asking.hear()
        assert (hello["pid"], hello["rank"], hello["armed"]) == (started.process.pid, "0", False)
        nccl = {"loaded": False, "live": None, "version": None, "debug": "WARN", "backend": None}
        assert hello["nccl"] == nccl
        steps = asking.ask("steps")
        assert (steps["count"], steps["last"], steps["faulthandler"]) == (None, 0.0, True)
        eventually(lambda: "script.py" in asking.ask("stacks")["text"])
        eventually(lambda: asking.ask("pulse")["stack"][0][2] == "<module>")
        taken = asking.ask("pulse", samples=2, whole=True, sites=True)
        assert [site[2] for site in taken["stack"]] == ["<module>"]
        assert (taken["sites"], taken["samples"], taken["torch"], taken["step"]) == (1, 2, False, 0)
        assert (taken["last_step"], taken["world_size"], taken["master"]) == (None, "2", None)
        assert 0 < taken["cpu_s"] <= taken["process_s"]
        assert "recorder" not in taken
        assert "error" in asking.ask("pulse", samples="many")
        assert "max_rss_bytes" in asking.ask("memory")["text"]
        assert asking.ask("flight")["error"] == "this torch has no flight recorder, or is not imported yet"
        assert asking.ask("dance")["error"] == "unknown request 'dance'"
        assert "PATH" in asking.ask("nccl", env={"PATH": "x"})["error"]
        assert asking.ask("nccl", env={"NCCL_DEBUG": "INFO"})["debug"] == "INFO"
        asking.close()
        assert started.ends() == 0
        assert started.read("err") == ""
        assert started.read("out") == "begun\n"


@pytest.mark.real
def test_its_last_message_says_that_the_interpreter_ends(place: Path) -> None:
    with rank(place, WAITS) as started:
        asking = Asking(started.socket)
        assert asking.hear()["rank"] == "0"
        assert started.ends() == 0
        assert asking.hear() == {"push": "leaving"}
        asking.close()


IN_TORCH = """
import sys, threading, torch
dumps = next(module for name, module in sys.modules.items() if name.endswith("memory_dump"))
begun, many = threading.Event(), torch.ones(800, 800)
dumps.memory = lambda: begun.set() or str(sum(float((many @ many).sum()) for _ in range(3)))
print("begun", flush=True)
begun.wait()
"""


@pytest.mark.long
@pytest.mark.torch
def test_a_process_ends_well_while_an_answer_comes_from_torch(place: Path) -> None:
    with rank(place, IN_TORCH) as started:
        eventually(lambda: started.read("out") == "begun\n")
        asking = Asking(started.socket)
        asking.send(b'{"op": "memory"}')
        assert started.ends() == 0
        assert started.read("err") == ""
        asking.close()


@dataclass(frozen=True)
class Script:
    """A script, and what it prints with the hook as without."""

    text: str = WAITS
    flags: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    sitecustomize: str = ""
    """Of the user's own."""
    has_hook: bool = True
    out: str = "begun\n"
    err: str = ""
    """What stderr holds; nothing at all if this is empty."""


SCRIPTS = {
    "a sitecustomize of the user's own": Script(
        "import sitecustomize\nprint(sitecustomize.MINE, flush=True)\n" + WAITS,
        sitecustomize="MINE = 'of the user'\n",
        out="of the user\nbegun\n",
    ),
    "a sitecustomize that fails": Script(sitecustomize="1 / 0\n", err="ZeroDivisionError"),
    "an environment that is shut out": Script(flags=("-I",), has_hook=False),
    "no place for the hook": Script(
        env={"DISTUI_HOOK": "/no/such/folder/r0", "DISTUI_RANK_FILES": "/no/such/rank"}, has_hook=False
    ),
    "an exception in a fork": Script(
        "import os, sys\nif os.fork() == 0: raise ValueError('of the child')\nos.wait()\n" + WAITS,
        err="of the child",
    ),
    "a log that has reached a limit of size": Script(
        "import resource, sys\n_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))\nprint('x' * 20_000)\nsys.stdout.flush()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))\n" + WAITS,
        out="x" * 1000 + "begun\n",
    ),
    "a stdout of its own": Script(
        "import io, sys\nsys.stdout = io.StringIO(); print('kept'); sys.stdout = sys.__stdout__\n" + WAITS
    ),
}


@pytest.mark.real
@for_each("name", SCRIPTS)
def test_scripts_run_as_they_do_without_the_hook(place: Path, name: str) -> None:
    script, folder = SCRIPTS[name], place / str(list(SCRIPTS).index(name))
    (folder / "theirs").mkdir(parents=True)
    env = dict(script.env)
    if script.sitecustomize:
        (folder / "theirs" / "sitecustomize.py").write_text(script.sitecustomize)
        env["PYTHONPATH"] = f"{INRANK / 'site'}:{folder / 'theirs'}"
    with rank(folder, script.text, *script.flags, **env) as started:
        eventually(lambda: "begun" in started.read("out"))
        assert started.socket.exists() is script.has_hook
        if script.has_hook:
            assert hello_of(started.socket)["pid"] == started.process.pid
        assert started.ends() == 0
        assert started.read("out") == script.out
        printed = started.read("err")
        assert script.err in printed if script.err else printed == ""
        assert not Path(f"{started.stem}.exc").exists()


@pytest.mark.real
def test_processes_that_the_rank_starts_have_no_part_in_it(place: Path) -> None:
    script = """
import os, subprocess, sys, time
reader, writer = os.pipe()
sys.stdin.readline()
worker = os.fork()
if worker == 0:  # as a DataLoader's; outlives the rank
    os.write(writer, b"forked"); time.sleep(600); os._exit(0)
print(worker, file=sys.stderr, flush=True)
os.read(reader, 6)
subprocess.run([sys.executable, "-c", "import sys; print(sys.modules.get('distui_inrank.hook'))"], check=True)
print("begun", flush=True)
sys.stdin.readline()
os._exit(3)
"""
    with rank(place, script) as started:
        asking = Asking(started.socket)
        assert asking.hear()["pid"] == started.process.pid
        assert started.process.stdin is not None
        started.process.stdin.write(b"fork\n")
        started.process.stdin.flush()
        eventually(lambda: "begun" in started.read("out"))
        assert started.read("out") == "None\nbegun\n"
        other = Asking(started.socket)
        assert other.hear()["pid"] == started.process.pid
        started.process.stdin.write(b"die\n")
        started.process.stdin.flush()
        assert started.process.wait(LIMIT_S) == 3
        # The worker lives on, and holds no end of these connections: the agent hears the end at once.
        assert (asking.hear(), other.hear()) == ({}, {})
        os.kill(int(started.read("err")), signal.SIGKILL)
        asking.close()
        other.close()


@pytest.mark.real
def test_stacks_come_by_signal_while_the_interpreter_is_held(place: Path) -> None:
    script = """
import ctypes, sys
def held_in_c():
    ctypes.PyDLL(None).sleep(60)  # keeps the lock of the interpreter
sys.stdin.readline()
print("held", flush=True)
held_in_c()
"""
    with rank(place, script) as started:
        asking = Asking(started.socket)
        assert asking.hear()["faulthandler"]
        assert started.process.stdin is not None
        started.process.stdin.write(b"go\n")
        started.process.stdin.flush()
        eventually(lambda: "held" in started.read("out"))
        eventually(lambda: Path(f"/proc/{started.process.pid}/wchan").read_text().find("nanosleep") >= 0)
        asking.patience(0.5)
        with pytest.raises(TimeoutError):
            asking.ask("stacks")
        started.process.send_signal(signal.SIGUSR2)
        eventually(lambda: "held_in_c" in started.read("stacks"))
        asking.close()


@pytest.mark.real
@pytest.mark.torch
def test_optimizer_steps_are_counted_once_each(place: Path) -> None:
    script = """
import sys
sys.stdin.readline()
import torch
weight = torch.nn.Parameter(torch.ones(1))
first, other = (torch.optim.SGD([weight], lr=0.1) for _ in range(2))
sys.stdin.readline()
for _ in range(5): first.step(); other.step()
print("stepped", flush=True)
sys.stdin.read()
"""
    with rank(place, script) as started:
        asking = Asking(started.socket)
        assert not asking.hear()["armed"]
        assert started.process.stdin is not None
        started.process.stdin.write(b"import\n")
        started.process.stdin.flush()
        pushed = asking.hear()
        # Whether NCCL is loaded is the build's affair: torch for CUDA loads it, used or not.
        assert (pushed["push"], pushed["nccl"]["backend"]) == ("armed", None)
        started.process.stdin.write(b"go\n")
        started.process.stdin.flush()
        eventually(lambda: "stepped" in started.read("out"))
        steps = asking.ask("steps")
        assert steps["count"] == 5
        assert 0 < steps["first"] <= steps["last"]
        asking.close()
        assert started.ends() == 0


@pytest.mark.real
def test_the_signal_for_stacks_ends_no_rank_that_shuts_down_and_is_left_to_a_script_that_takes_it(
    place: Path,
) -> None:
    """What C runs at the end is where torch spends seconds; here it waits there for a signal that ends it."""
    script = """
import ctypes, signal, sys
libc = ctypes.CDLL(None)
print(signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL, flush=True)
sys.stdin.readline()
getattr(libc, "__cxa_atexit")(ctypes.cast(libc.pause, ctypes.c_void_p), None, None)
"""
    with rank(place, script) as started:
        pid = hello_of(started.socket)["pid"]
        eventually(lambda: started.read("out"))
        assert started.read("out") == "True\n"
        assert catches(pid, signal.SIGUSR2)
        assert started.process.stdin is not None
        started.process.stdin.close()
        eventually(lambda: not catches(pid, signal.SIGUSR2))
        os.kill(pid, signal.SIGUSR2)
        os.kill(pid, signal.SIGTERM)
        assert started.process.wait(LIMIT_S) == -signal.SIGTERM

    taken = "import signal; signal.signal(signal.SIGUSR2, lambda *_: print('mine', flush=True))\n" + WAITS
    with rank(place, taken) as started:
        eventually(lambda: started.read("out"))
        asking = Asking(started.socket)
        assert asking.ask("steps")["faulthandler"] is False
        asking.close()
