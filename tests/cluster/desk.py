"""Where the user of these tests sits: distui and SkyPilot in the rig's client, and what they left on disks."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import schemas  # type: ignore[import-not-found, unused-ignore]
from patience import HANG_S  # type: ignore[import-not-found, unused-ignore]
from screen import Screen  # type: ignore[import-not-found, unused-ignore]
from slurm.cluster import Cluster  # type: ignore[import-not-found, unused-ignore]

from distui.runners.run.wire.ssh import AGAIN_S, closed_early

EXAMPLE = Path(__file__).resolve().parents[2] / "presets/examples/chargpt.py"
STEADY = """\
\"\"\"The example, with a numbered line from every rank, ten each second.\"\"\"
import sys, threading, time
import chargpt

def count():
    number = 0
    while True:
        sys.stdout.write(f"line {number}\\n")  # at once: print() writes the end of a line apart
        number += 1
        time.sleep(0.1)

threading.Thread(target=count, daemon=True).start()
sys.exit(chargpt.main())
"""
FOR_EVER = ("steady.py", "--steps", "1000000", "--step-delay", "0.1")
LIVE = ("starting", "running", "restarting", "stopping")
API_SERVER = ("sky.server", "SkyPilot:", "multiprocessing.")
"""Each of its processes has one of these words in its command line."""
ANSWERED = ("CommandReceived", "CommandDone")
"""What a hub tells in one line of its own, instead of each node's."""

Status = dict[str, Any]


class Desk:
    """One folder with a script, and one SkyPilot cluster's name."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.folder = cluster.scratch / name
        self.folder.mkdir(exist_ok=True)
        (self.folder / EXAMPLE.name).write_bytes(EXAMPLE.read_bytes())
        (self.folder / "steady.py").write_text(STEADY)

    # Doing

    def distui(
        self, *words: str, timeout: float = 90, input: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Any verb; what it prints with --json is what its schema says."""
        done: subprocess.CompletedProcess[str] = self.cluster.client(
            ["distui", *words], timeout, cwd=self.folder, input=input
        )
        return as_in_schema(words, done)

    def ok(self, *words: str, timeout: float = 90) -> str:
        """Stdout of a verb that has to work."""
        done = self.distui(*words, timeout=timeout)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def refused(self, *words: str) -> str:
        """What a verb says that does not work: one sentence."""
        done = self.distui(*words)
        assert done.returncode, done.stdout
        assert done.stderr.startswith("distui: ")
        assert done.stderr.count("\n") == 1
        return done.stderr

    def words(self, preset: str, *options: str) -> list[str]:
        """Of a launch on this desk's cluster."""
        return [
            "distui", "launch", preset, "--on", "slurm/distui", "--cluster", self.name, "--nnodes", "2",
            "--nproc-per-node", "1", "--cpus", "2", "--memory", "4", "--python", self.cluster.job_python,
            *options, "--", *FOR_EVER,
        ]  # fmt: skip

    def launch(self, preset: str, name: str, *options: str) -> str:
        """Start a run and return its id."""
        words = self.words(preset, "--name", name, "--detach", "--json", *options)[1:]
        return str(json.loads(self.ok(*words))["run"])

    @contextmanager
    def terminal(self, *words: str) -> Iterator[Screen]:
        """A verb in a terminal of its own, at which nobody sits afterwards."""
        cluster = self.cluster
        command = cluster.command("client", words, self.folder)
        screen = Screen(command, cluster.environment("client"), self.folder)
        try:
            yield screen
        finally:
            screen.close()

    def launch_and_be_cut_off(self, preset: str, name: str, *options: str) -> str:
        """Start a run with its cockpit, which is killed in mid-provisioning; another one finds the launch."""
        with self.terminal(*self.words(preset, "--name", name, *options)) as screen:
            screen.until(" provision ")
            assert self.kill("client", ("bin/distui", "launch", preset))
            screen.ended()
        (run,) = [row["run"] for row in json.loads(self.ok("ls", "--json")) if row["name"] == name]
        found = self.status(run)
        assert found["state"] == "starting", told(found)
        assert [stage["state"] for stage in found["stages"]] == ["begun"], told(found)
        with self.terminal("distui", "attach", run) as screen:
            screen.until(" provision ")
            screen.press("q")
            assert screen.ended() == 0
        return str(run)

    def kill(self, host: str, marks: tuple[str, ...], number: int = signal.SIGKILL) -> int:
        """Signal processes of a host whose command line has all these words; how many there were."""
        found = 0
        for process in self.processes(host, *marks):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
                found += 1
        return found

    def sky(self, *words: str, timeout: float = 90) -> str:
        """Stdout of SkyPilot's own command."""
        done = self.cluster.client(["sky", *words], timeout)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    # Looking

    def status(self, run: str) -> Status:
        """`status --json`."""
        found: Status = json.loads(self.ok("status", run, "--json"))
        return found

    def until(self, run: str, so: Callable[[Status], bool], timeout: float, bad: str = "failed") -> Status:
        """The status for which it is so; a run that comes to the state `bad` never will be."""
        end = time.monotonic() + timeout + HANG_S
        while not so(found := self.status(run)):
            assert time.monotonic() < end, told(found)
            assert found["state"] != bad, told(found)
            time.sleep(1.0)  # each look is a process
        return found

    def processes(self, host: str, *marks: str) -> list[psutil.Process]:
        """Processes of a host whose command line has all these words."""
        found = []
        for process in self.cluster.processes(host):
            with suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if all(mark in line for mark in marks):
                    found.append(process)
        return found

    def ranks(self, host: str) -> list[psutil.Process]:
        """The ranks of a node."""
        return self.processes(host, "python -u steady.py")

    def job(self, number: int | None = None) -> str:
        """What SkyPilot says of a job of the cluster: that of this number, or the newest."""
        code = (
            "import sky; print([(job['job_id'], job['status'].value) for job in "
            f"sky.get(sky.queue({self.name!r}, all_users=True))])"
        )
        done = self.cluster.client(["python", "-c", code], 60)
        assert done.returncode == 0, done.stderr
        jobs = dict(json.loads(done.stdout.strip().splitlines()[-1].translate(_AS_JSON)))
        return str(jobs[max(jobs) if number is None else number])

    def listed_as_cancelled(self, run: str, job: int) -> None:
        """SkyPilot lists the job of a stopped run so in the end, or distui reports that it does not."""
        self.cluster.wait(
            lambda: self.job(job) not in ("RUNNING", "STOPPING"), "SkyPilot lists its end", 200, every=1.0
        )
        listed = self.job(job)
        reported = f"job {job} on {self.name} is listed by SkyPilot as {listed}"
        assert listed == "CANCELLED" or reported in (self.run_dir(run) / "journal.jsonl").read_text(), (
            listed
        )

    def run_dir(self, run: str) -> Path:
        """The hub's."""
        return Path(self.cluster.home) / ".local/state/distui/runs" / run

    def part_dir(self, run: str, node: int) -> Path:
        """That node's, in the home folder that SkyPilot made for the cluster."""
        (home,) = (self.cluster.shared_home / ".sky_clusters").glob(f"{self.name}-*")
        return Path(home) / ".local/state/distui/runs" / f"{run}.n{node}"

    def journal(self, run: str) -> list[dict[str, Any]]:
        """The hub's, as it stands."""
        return read(self.run_dir(run))

    def log(self, run: str, node: int, attempt: int) -> list[str]:
        """Lines of stdout of a node's rank, as distui shows them here."""
        words = ("--node", str(node), "--stream", "out", "--attempt", str(attempt))
        return self.ok("logs", run, *words).splitlines()

    def written(self, run: str, node: int, attempt: int) -> list[str]:
        """The same, as they stand in the file on the node."""
        (file,) = self.part_dir(run, node).glob(f"node-{node}/attempt-{attempt:03}/rank-*.out")
        return file.read_text().splitlines()

    def taken_over_whole(self, run: str, node: int) -> None:
        """Every event of a node's own journal stands in the hub's once, in order; the hub's own seq has no gap."""
        journal = self.journal(run)
        assert [one["seq"] for one in journal] == list(range(1, len(journal) + 1))
        wanted = [
            one["seq"] for one in read(self.part_dir(run, node)) if one["event"]["type"] not in ANSWERED
        ]
        has = [one["source"] for one in journal if one.get("node", 0) == node and one.get("source")]
        assert has == wanted[: len(has)]
        assert len(wanted) - len(has) <= 1, "what was written just now may be on its way"


def as_in_schema(
    words: Sequence[str], done: subprocess.CompletedProcess[str]
) -> subprocess.CompletedProcess[str]:
    """A verb that was typed; its JSON, wherever it ran, is what its schema says."""
    if "--json" in words and done.stdout:
        schemas.checked(words, done.stdout)
    return done


def typed_ssh(cluster: Cluster, *words: str, timeout: float = 90) -> subprocess.CompletedProcess[str]:
    """`ssh` in the client, typed again where it was closed before the login, as distui tries its own links again."""
    for pause_s in (*AGAIN_S, None):
        done: subprocess.CompletedProcess[str] = cluster.client(["ssh", *words], timeout)
        if pause_s is None or not closed_early(done.stderr.splitlines(), done.returncode):
            break
        print(f"ssh {words} is typed again: {done.stderr}")
        time.sleep(pause_s)
    return done


def read(run_dir: Path) -> list[dict[str, Any]]:
    """A journal; its last line may be half written."""
    lines = (run_dir / "journal.jsonl").read_text().split("\n")
    return [json.loads(line) for line in lines[:-1]]


def told(found: Status) -> str:
    """A status, short enough to read."""
    parts = ("state", "text", "attempt", "stages", "findings", "nodes", "ranks")
    return json.dumps({part: found[part] for part in parts}, indent=1)[:6000]


def stepping(found: Status) -> bool:
    """Whether both nodes' ranks take steps."""
    ranks = found["ranks"]
    return (
        found["state"] == "running"
        and [rank["node"] for rank in ranks] == [0, 1]
        and all((rank["step"] or 0) > 1 for rank in ranks)
    )


_AS_JSON = str.maketrans({"(": "[", ")": "]", "'": '"'})
