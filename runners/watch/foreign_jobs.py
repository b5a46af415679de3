"""Jobs on this host that distui did not start: launchers by command line, ranks by environment."""

from __future__ import annotations

import os
import os.path
import shlex
import stat
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from ...presets.sanitize import clean_text
from ...presets.secrets import mask_words
from ..run import clock
from ..run.errors import NoSuchRunError
from ..run.proc import TICKS, Stat, all_stats

# -----------------------------------------------------------------------------------------------------------
# Facts from a command line: the launcher, and the script of the ranks. Pure.


_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torch.distributed.launcher": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.launch": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
}
_PROGRAMS = {"torchrun": "torchrun", "accelerate": "accelerate", "accelerate-launch": "accelerate"}
_PROGRAMS |= {"deepspeed": "deepspeed", "srun": "srun", "slurmstepd": "srun"}
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def launcher_kind(argv: Sequence[str]) -> str | None:
    """Launcher of a command line: "torchrun", "accelerate", "deepspeed" or "srun"; None for any other program.

    Slurm's step daemon names itself `slurmstepd: [1234.0]`.
    """
    if not argv:
        return None
    first = os.path.basename(argv[0].split(":")[0].strip())
    if first in _PROGRAMS:
        return _PROGRAMS[first]
    module, script = _entry(argv)
    if module is not None:
        return _MODULES.get(module)
    if script is not None and script.endswith("torch/distributed/run.py"):
        return "torchrun"
    return _PROGRAMS.get(os.path.basename(script)) if script else None


def command_of(argv: Sequence[str]) -> str:
    """Return a rank's command in one line, with secrets masked.

    It is the script or `-m module` and the arguments, without the interpreter.
    """
    start = _start(argv)
    return clean_text(shlex.join(mask_words(argv[start:] or argv)))


def name_of(argv: Sequence[str]) -> str:
    """Return a short name: the script without its suffix, the module's last part, or the program."""
    module, script = _entry(argv)
    if module is not None:
        return clean_text(module.rpartition(".")[2])
    text = script or (argv[0] if argv else "")
    return clean_text(os.path.splitext(os.path.basename(text))[0]) or "job"


def _entry(argv: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the module and the script of a command.

    (module, None) for `python -m module`, (None, script) for `python script` or `script`; else (None, None).
    """
    start = _start(argv)
    if start == 0 or start >= len(argv):
        return None, argv[0] if start == 0 and argv else None
    if argv[start] == "-m":
        return (argv[start + 1], None) if start + 1 < len(argv) else (None, None)
    return None, None if argv[start] == "-c" else argv[start]


def _start(argv: Sequence[str]) -> int:
    """Index of the script, `-m` or `-c` in a Python command line; 0 for any other program."""
    if not argv or not os.path.basename(argv[0]).startswith(("python", "pypy")):
        return 0
    at = 1
    while at < len(argv) and argv[at].startswith("-") and argv[at] not in ("-m", "-c", "-"):
        at += 2 if argv[at] in _WITH_VALUE else 1
    return at


# -----------------------------------------------------------------------------------------------------------
# Ranks of this user on this host, found by environment variables that every launcher sets. `torch.distributed` reads
# `RANK`, `LOCAL_RANK` and `WORLD_SIZE` (init_method "env://"). torchrun sets `TORCHELASTIC_*`, `GROUP_RANK` and
# `LOCAL_WORLD_SIZE`. Ranks that a script spawns itself (torch.multiprocessing) are not visible: they set theirs
# later, and /proc shows the environment at exec.


_NAMES = frozenset(
    b"RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID "
    b"TORCHELASTIC_RESTART_COUNT SLURM_JOB_ID SLURM_STEP_ID CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER "
    b"DISTUI_RUN_ID".split()
)


class Output(Struct, frozen=True):
    """Destination of a process's stdout or stderr."""

    path: str | None
    """Absolute path of a regular file; None for anything else."""
    why: str = ""
    """Any other destination: "a terminal", "a pipe", …"""


class RankProcess(Struct, frozen=True):
    rank: int
    local_rank: int
    pid: int
    started: int
    """Clock ticks after boot; with the pid it identifies a process uniquely."""
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Only the variables that this module reads."""
    out: Output
    err: Output
    below: frozenset[tuple[int, int]] = frozenset()
    """(pid, start) of its children with its environment: data loader workers and the like."""


class WatchedJob(Struct, frozen=True):
    """Ranks of one job on this host."""

    key: str
    """Constant key of the job during its life."""
    launcher: str
    """One of "torchrun", "accelerate", "deepspeed", "srun", or "python" without a known launcher above the ranks."""
    launchers: frozenset[tuple[int, int]]
    """(pid, start) of the launcher's processes on this host; empty for "python"."""
    cwd: str
    world_size: int
    run: str | None
    """Id of the distui run that it belongs to; None for a job that distui did not start."""
    ranks: Mapping[int, RankProcess]
    began: float
    """Unix time at the start of its oldest process here."""

    @property
    def pid(self) -> int:
        """The pid that identifies the job."""
        return min(rank.pid for rank in self.ranks.values())

    @property
    def name(self) -> str:
        """The name of its program."""
        return name_of(min(self.ranks.values(), key=lambda rank: rank.rank).argv)


class Scan(Struct, frozen=True):
    """Jobs and processes at one moment."""

    time: float
    """Unix seconds."""
    jobs: Mapping[str, WatchedJob] = field(default_factory=dict)
    alive: frozenset[tuple[int, int]] = frozenset()
    """(pid, start) of every visible process, without zombies."""


class _Carrier(Struct, frozen=True):
    """A process with the environment of a rank: the rank, or a child of it."""

    stat: Stat
    env: dict[str, str]

    @property
    def identity(self) -> tuple[str, str]:
        return job_key(self.env), self.env["RANK"]


def scan(proc: str = "/proc", now: float | None = None) -> Scan:
    """Scan once. Skip processes that end during the scan or have an unreadable environment."""
    stats = {entry.pid: entry for entry in all_stats(proc) if entry.state not in "ZX"}
    carriers: dict[int, _Carrier] = {}
    for pid, entry in stats.items():
        env = _rank_environment(pid, proc)
        if env is not None:
            carriers[pid] = _Carrier(entry, env)
    by_key: dict[str, list[RankProcess]] = {}
    for pid, children in _tops(carriers).items():
        rank = _rank(carriers[pid], {sub: carriers[sub].stat.started for sub in children}, proc)
        if rank is not None:
            by_key.setdefault(job_key(rank.env), []).append(rank)
    jobs = {key: _job(key, processes, stats, proc) for key, processes in by_key.items()}
    alive = frozenset((entry.pid, entry.started) for entry in stats.values())
    return Scan(clock.now() if now is None else now, jobs, alive)


def find_job(seen: Scan, pid: int | None = None) -> WatchedJob:
    """Return the job with process `pid` as rank, rank's child or launcher; without a pid the only job.

    Raises NoSuchRunError.
    """
    jobs = list(seen.jobs.values())
    if pid is not None:
        jobs = [job for job in jobs if pid in pids_of(job)]
        if not jobs:
            raise NoSuchRunError(
                f"process {pid} does not belong to a training job of yours on this host: "
                "`distui watch` without a pid lists what can be watched"
            )
    if not jobs:
        raise NoSuchRunError(
            "no process of yours on this host has RANK, LOCAL_RANK and WORLD_SIZE in its environment: "
            "start the job first, and run this on a host where its ranks are"
        )
    if len(jobs) > 1:
        choices = ", ".join(
            f"{min(process.pid for process in job.ranks.values())} ({job.launcher})" for job in jobs
        )
        raise NoSuchRunError(
            f"{len(jobs)} jobs run here: name one by the pid of one of its ranks, such as {choices}"
        )
    return jobs[0]


def pids_of(job: WatchedJob) -> frozenset[int]:
    """Every process of the job on this host: launchers, ranks and their children."""
    below = {pid for process in job.ranks.values() for pid, _ in process.below}
    return frozenset(
        {process.pid for process in job.ranks.values()} | {pid for pid, _ in job.launchers} | below
    )


def job_key(env: Mapping[str, str]) -> str:
    """Key that all ranks of one job share. The run id of torchrun without --rdzv-id is always "none"."""
    if run := env.get("DISTUI_RUN_ID"):
        return f"distui {run}"
    if (elastic := env.get("TORCHELASTIC_RUN_ID", "")) not in ("", "none"):
        return f"elastic {elastic}"
    if env.get("MASTER_ADDR"):
        return f"{env['MASTER_ADDR']}:{env.get('MASTER_PORT', '')} world {env['WORLD_SIZE']}"
    if slurm := env.get("SLURM_JOB_ID"):
        return f"slurm {slurm}.{env.get('SLURM_STEP_ID', '')}"
    return f"world {env['WORLD_SIZE']}"


def _rank_environment(pid: int, proc: str) -> dict[str, str] | None:
    """Return the needed variables if a process of this user has a rank's environment; else None."""
    try:
        if os.stat(f"{proc}/{pid}").st_uid != os.getuid():
            return None
        with open(f"{proc}/{pid}/environ", "rb") as file:
            data = file.read()
    except OSError:
        return None
    if b"LOCAL_RANK=" not in data or b"WORLD_SIZE=" not in data:
        return None
    pairs = (entry.partition(b"=") for entry in data.split(b"\0"))
    env = {name.decode(): value.decode(errors="replace") for name, _, value in pairs if name in _NAMES}
    whole = all(env.get(name, "").isdecimal() for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    return env if whole else None


def _tops(carriers: Mapping[int, _Carrier]) -> dict[int, set[int]]:
    """Pids of the ranks, one per job and rank, each with its descendants that have its environment."""
    below: dict[int, set[int]] = {}
    for pid, carrier in carriers.items():
        top = pid
        while (up := carriers.get(carriers[top].stat.ppid)) and up.identity == carrier.identity:
            top = up.stat.pid
        below.setdefault(top, set()).add(pid)
    chosen: dict[tuple[str, str], int] = {}
    for pid in sorted(below, key=lambda pid: _precedence(carriers[pid])):
        chosen[carriers[pid].identity] = pid
    return {pid: below[pid] - {pid} for pid in sorted(chosen.values())}


def _precedence(carrier: _Carrier) -> tuple[int, bool, int]:
    """Sort key for processes that claim one rank: the highest is it (newer attempt, not an orphan, newer)."""
    count = carrier.env.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(count) if count.isdecimal() else 0, carrier.stat.ppid != 1, carrier.stat.started


def _rank(carrier: _Carrier, below: Mapping[int, int], proc: str) -> RankProcess | None:
    """Read all data of a rank; None if it has ended."""
    pid, env = carrier.stat.pid, carrier.env
    if not (argv := _argv(pid, proc)):
        return None
    return RankProcess(
        rank=int(env["RANK"]),
        local_rank=int(env["LOCAL_RANK"]),
        pid=pid,
        started=carrier.stat.started,
        argv=argv,
        env=env,
        out=_output(pid, 1, proc),
        err=_output(pid, 2, proc),
        below=frozenset(below.items()),
    )


def _job(key: str, processes: list[RankProcess], stats: Mapping[int, Stat], proc: str) -> WatchedJob:
    parents = {stats[stats[process.pid].ppid] for process in processes if stats[process.pid].ppid in stats}
    kinds = {parent: kind for parent in parents if (kind := launcher_kind(_argv(parent.pid, proc)))}
    first = min(processes, key=lambda process: process.rank)
    oldest = min([process.started for process in processes] + [parent.started for parent in kinds])
    return WatchedJob(
        key=key,
        launcher=next(iter(sorted(kinds.values())), "python"),
        launchers=frozenset((parent.pid, parent.started) for parent in kinds),
        cwd=_link(f"{proc}/{first.pid}/cwd") or "",
        world_size=int(first.env["WORLD_SIZE"]),
        run=first.env.get("DISTUI_RUN_ID") or None,
        ranks={process.rank: process for process in sorted(processes, key=lambda process: process.rank)},
        began=_boot_time(proc) + oldest / TICKS,
    )


def _argv(pid: int, proc: str) -> tuple[str, ...]:
    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            data = file.read()
    except OSError:
        return ()
    return tuple(part.decode(errors="replace") for part in data.rstrip(b"\0").split(b"\0")) if data else ()


def _output(pid: int, number: int, proc: str) -> Output:
    """Target of a process's descriptor. For names of targets other than files see proc_pid_fd(5)."""
    link = f"{proc}/{pid}/fd/{number}"
    target = _link(link)
    try:
        mode = os.stat(link).st_mode
    except OSError:
        return Output(None, "closed, or not readable from here")
    if target and target.startswith("/") and stat.S_ISREG(mode):
        return Output(None, "a deleted file") if target.endswith(" (deleted)") else Output(target)
    if target == "/dev/null":
        return Output(None, "/dev/null")
    kinds = ((stat.S_ISCHR, "a terminal"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return Output(None, next((word for is_kind, word in kinds if is_kind(mode)), "no regular file"))


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _boot_time(proc: str) -> float:
    """Unix seconds at boot: `btime` of proc_stat(5)."""
    with open(f"{proc}/stat", encoding="ascii") as file:
        return next(float(line.split()[1]) for line in file if line.startswith("btime "))
