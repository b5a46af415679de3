"""The runner: one process that owns the ranks, and outlives the agent that started it."""

import json
import os
import platform
import signal
import sys
import threading
import time

from .control import Control
from .policy import how_it_ended
from .report import Report, children, environ_of, signal_name, wait_peeking


class Group:
    """State that the control thread sets and the launcher's loop obeys."""

    def __init__(self, plan, run_dir, failures):
        self.plan = plan
        self.run_dir = run_dir
        self.failures = failures
        self.attempt = 0
        self.began = 0.0
        self.ending = False
        """The current attempt is being ended on purpose."""
        self.stopping = False
        self.restart = threading.Event()
        self.diff = {}
        """Environment changes for the next attempt: name → value, or None to unset."""
        self.shown = {}
        """The same with secret values hidden: what may be written down."""
        self.pids = {}
        """Live ranks of the current attempt: local rank → pid."""
        self.failed = threading.Event()
        self.lock = threading.Lock()
        self.control = Control(socket_path(plan, run_dir), self.answer)
        self.report = Report(os.path.join(run_dir, "runner.jsonl"), self.control.poke)
        self.on_stop = lambda: os.kill(os.getpid(), signal.SIGTERM)
        self.on_restart = lambda: None

    def answer(self, request):
        """Commands: {"op": "restart"|"env"|"stop"|"ping", "env": {name: value|null}}."""
        op = request.get("op")
        if op in ("restart", "env"):
            changes = request.get("env") or {}
            self.diff.update(changes)
            self.shown.update(request.get("shown") or changes)
        if op == "restart":
            self.ending = bool(self.pids)
            self.restart.set()
            self.on_restart()
            self._kill_after_grace(dict(self.pids))
        elif op == "stop":
            self.stopping = self.ending = True
            self._kill_after_grace(dict(self.pids), request.get("grace_s"))
            self.on_stop()
        elif op not in ("env", "ping"):
            return {"ok": False, "text": "unknown command %r" % op}
        return {"ok": True, "attempt": self.attempt}

    def _kill_after_grace(self, pids, grace_s=None):
        """torch waits a fixed 30 s for a rank that does not heed SIGTERM; the grace may be shorter."""

        def kill():
            for local, pid in pids.items():
                if self.pids.get(local) == pid:
                    kill_group(pid, signal.SIGKILL)

        timer = threading.Timer(self.plan["grace_s"] if grace_s is None else grace_s, kill)
        timer.daemon = True
        timer.start()

    def take_env(self):
        """Apply the pending environment changes to this process, which every rank's environment is copied from."""
        diff, self.diff = self.diff, {}
        shown, self.shown = self.shown, {}
        for name, value in diff.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        return shown

    def next_attempt(self):
        """Number and a new directory for the next attempt; a directory is never used twice."""
        inherited = int(os.environ.pop("DISTUI_ATTEMPT", "0"))
        number = max(self.attempt + 1, inherited)
        node = os.path.join(self.run_dir, "node-0")
        while os.path.isdir(os.path.join(node, "attempt-%03d" % number)) and number != inherited:
            number += 1
        directory = os.path.join(node, "attempt-%03d" % number)
        os.makedirs(directory, mode=0o700, exist_ok=number == inherited)
        self.attempt, self.began, self.ending = number, time.time(), False
        self.failed.clear()
        return number, directory

    def watch(self, places, is_rank):
        """Find the pids of the spawned ranks and report each one's start and end."""
        threading.Thread(
            target=self._find, args=(self.attempt, places, is_rank), name="distui-find", daemon=True
        ).start()

    def _find(self, attempt, places, is_rank):
        missing = {place["local_rank"]: place for place in places}
        seen = set()
        deadline = time.monotonic() + 60
        while missing and time.monotonic() < deadline and attempt == self.attempt:
            for pid in children():
                local = None if pid in seen else is_rank(pid)
                if local in missing:
                    seen.add(pid)
                    self._follow(attempt, missing.pop(local), pid)
            time.sleep(0.01)

    def _follow(self, attempt, place, pid):
        self.pids[place["local_rank"]] = pid
        about = {"attempt": attempt, "rank": place["rank"], "local_rank": place["local_rank"], "pid": pid}
        self.report("RankChanged", state="running", **about)

        def wait():
            code = wait_peeking(pid)
            now = time.time()
            with self.lock:
                self.pids.pop(place["local_rank"], None)
                state = "lost" if code is None else how_it_ended(code, self.ending, self.failed.is_set())
                if state in ("failed", "killed"):
                    self.failed.set()
                self.report(
                    "RankChanged", state=state, exit_code=code, signal=signal_name(code), at=now, **about
                )

        threading.Thread(target=wait, name="distui-wait-%d" % pid, daemon=True).start()

    def settle(self, seconds=2.0):
        """Wait until the end of every rank was reported."""
        deadline = time.monotonic() + seconds
        while self.pids and time.monotonic() < deadline:
            time.sleep(0.01)


def kill_group(pid, number):
    """Signal the process group that a rank leads."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def local_rank_of(pid):
    """Local rank by environment; None while the process is still a copy of its parent."""
    env = environ_of(pid)
    local = env.get("LOCAL_RANK", "")
    return int(local) if local.isdigit() and env.get("DISTUI_RUNNER_PID") == str(os.getpid()) else None


def socket_path(plan, run_dir):
    """The agent names the directory; a runner inside a managed command has a socket of its own."""
    nested = "DISTUI_NESTED" in os.environ
    return os.environ["DISTUI_SOCKETS"] + (".sub" if nested else ".run")


def write_identity(run_dir, path, kind):
    """runner.json: by which a later agent knows that this pid is still this runner."""
    with open("/proc/self/stat") as file:
        start_ticks = int(file.read().rpartition(")")[2].split()[19])
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot_id = file.read().strip()
    identity = {
        "pid": os.getpid(), "start_ticks": start_ticks, "boot_id": boot_id,
        "host": platform.node(), "socket": path, "kind": kind,
    }  # fmt: skip
    temporary = os.path.join(run_dir, "runner.json.tmp")
    with open(temporary, "w") as file:
        json.dump(identity, file)
    os.replace(temporary, os.path.join(run_dir, "runner.json"))


def main(argv):
    """Run the plan in `argv[0]`; `argv[1]`, if given, is the number of failures counted before."""
    run_dir = argv[0]
    with open(os.path.join(run_dir, "plan.json")) as file:
        plan = json.load(file)
    nested = "DISTUI_NESTED" in os.environ
    if nested:
        plan = dict(plan, launcher="torchrun", argv=argv[2:])
    group = Group(plan, run_dir, int(argv[1]) if len(argv) > 1 else 0)
    if not nested:
        write_identity(run_dir, socket_path(plan, run_dir), plan["launcher"])
    if plan["launcher"] == "command":
        from .command import run
    else:
        from .elastic import run
    return run(group, nested)


def started(group, torch_version=None):
    """Report this runner."""
    group.report(
        "RunnerStarted", pid=os.getpid(), kind=group.plan["launcher"], python=sys.executable,
        socket=socket_path(group.plan, group.run_dir), torch=torch_version,
    )  # fmt: skip
