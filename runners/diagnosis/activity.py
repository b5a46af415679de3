"""Classify what a rank does: its place in the code, and whether it works, waits for helpers, or idles."""

from __future__ import annotations

import enum
import functools
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from ..run.pulse import Collective, Pulse, RankThread, Site
from . import progress
from .diagnosis_settings import DEFAULT_S
from .progress import Movement


def site_text(site: Site) -> str:
    """ "train.py:33 load"."""
    return f"{site.file.rpartition('/')[2]}:{site.line} {site.name}"


def stack_text(sites: Iterable[Site]) -> str:
    """Return the frames of a stack, innermost first, as one line."""
    return ", ".join(site_text(site) for site in sites)


def call_text(call: Collective) -> str:
    """ "all_reduce #42". A call that only a stack shows has no number."""
    return f"{call.op} #{call.seq}" if call.seq and not call.p2p else call.op


def open_call(pulse: Pulse) -> Collective | None:
    """Return the oldest collective that is open at a pulse."""
    completed = {group.name: group.completed for group in pulse.groups}
    for call in pulse.active:  # oldest first
        if not call.done and (call.p2p or completed.get(call.group, -1) < call.seq):
            return call
    return None


class Kind(enum.StrEnum):
    LOADER = "loader"
    CHECKPOINT = "checkpoint"
    COMPILE = "compile"
    STORE = "store"
    """Creation of process groups: rendezvous, key-value store, first connections."""
    COLLECTIVE = "collective"
    DEBUGGER = "debugger"
    SUBPROCESS = "subprocess"
    LOCK = "lock"
    NETWORK = "network"
    IMPORT = "import"
    TORCH = "torch"
    CODE = "code"
    """Any other code of the user or a library."""
    UNKNOWN = "unknown"
    """There is no stack."""


class RankPosition(NamedTuple):
    kind: Kind
    site: Site | None = None
    """The frame to name: the innermost in the user's own code, else in a library, else the innermost."""
    op: str = ""
    """torch's function for COLLECTIVE and STORE: "all_reduce", "new_group"."""


class FrameRule(NamedTuple):
    """The meaning of a frame with a matching file and function."""

    kind: str
    path: re.Pattern[str]
    names: re.Pattern[str]

    def fits(self, file: str, name: str) -> bool:
        """Whether a frame of this function in this file matches. The body of a module is run by its import."""
        return name != "<module>" and bool(self.path.search(rooted(file)) and self.names.search(name))


@functools.cache
def _places() -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("places.toml").read_text("utf-8"))


@functools.cache
def frame_rules(table: str) -> tuple[FrameRule, ...]:
    """Return the rules of a table in places.toml; they are compiled at the first use, which a viewer may not need."""
    return tuple(
        FrameRule(
            rule["kind"], re.compile("|".join(rule["path"])), re.compile("|".join(rule.get("names", ())))
        )
        for rule in _places()[table]
    )


def rooted(file: str) -> str:
    """Return a path with a leading slash, which the expressions require before a folder."""
    return file if file.startswith(("/", "<")) else f"/{file}"


_SAVES = re.compile(r"^_?(save|load|write|restore|dump)\w*(check_?point|ckpt|snapshot|state_?dict)", re.I)
"""Names of functions that write or read checkpoints, in any library."""
_TORCH = re.compile(
    r"/(site-packages|dist-packages|pytorch)/torch/|/torch/(_\w+|functional|library|random|serialization|storage)\.py$"
    r"|/torch/(_\w+|amp|ao|autograd|backends|cuda|distributed|export|func|fx|jit|multiprocessing|nn|optim|utils)/"
)
"""Torch's own files, also of a checkout of its source."""
_LIBRARY = re.compile(r"/(site|dist)-packages/")
_DISTUI = {Path(__file__).parents[1], Path(__file__).resolve().parents[1]}
"""Folders of distui's own modules here, also in an installation for development, which links to them."""
_PYTHON = re.compile(
    r"/lib(64)?/python3\.\d+t?/|/python3\d+\.zip/|^<|/inrank/|/distui/(runners|tui|presets(?!/examples))/|"
    + "|".join(re.escape(f"{folder}/") for folder in sorted(_DISTUI))
)
"""Python's own files, and distui's, except its example scripts."""
_TORCH_LEVEL, _PYTHON_LEVEL = 2, 3
_LEVELS = ((_TORCH_LEVEL, _TORCH), (1, _LIBRARY), (_PYTHON_LEVEL, _PYTHON))
"""Files that are not the user's own code, by level; the first match counts."""


class _StackFrame(NamedTuple):
    strong: Kind | None
    weak: Kind | None
    level: int
    """Level in `_LEVELS`; 0 for the user's own code."""


@functools.lru_cache(maxsize=8192)
def _frame(file: str, name: str) -> _StackFrame:
    path = rooted(file)
    strong = next((Kind(row.kind) for row in frame_rules("strong") if row.fits(path, name)), None)
    weak = next((Kind(row.kind) for row in frame_rules("weak") if row.fits(path, name)), None)
    if weak is None and _SAVES.search(name):
        weak = Kind.CHECKPOINT
    return _StackFrame(strong, weak, _level(path))


def _level(path: str) -> int:
    return next((level for level, files in _LEVELS if files.search(path)), 0)


def position_of(stack: Sequence[Site]) -> RankPosition:
    """Return the position of a rank by its stack, innermost frame first."""
    if not stack:
        return RankPosition(Kind.UNKNOWN)
    frames = [(site, _frame(site.file, site.name)) for site in stack]
    named = min(frames, key=lambda pair: pair[1].level)[0]
    for site, frame in frames:
        if frame.strong is not None:
            calls_torch = frame.strong in (Kind.COLLECTIVE, Kind.STORE)
            return RankPosition(frame.strong, named, _op(stack, site) if calls_torch else "")
    weak = next((frame.weak for _, frame in frames if frame.weak is not None), None)
    if weak is not None:
        return RankPosition(weak, named)
    return RankPosition(Kind.TORCH if frames[0][1].level == _TORCH_LEVEL else Kind.CODE, named)


BLOCKED, EVENT_LOOP = (
    "is blocked (lock, queue or thread)",
    "waits in its event loop: no task of asyncio is ready",
)


def wait_text(stack: Sequence[Site]) -> str:
    """Return what a thread with this stack waits for: by the function of Python's library that its own code calls."""
    text = BLOCKED
    for site in stack:
        if own_code(site.file):
            break
        kind = next((rule.kind for rule in frame_rules("wait") if rule.fits(site.file, site.name)), "")
        text = f"waits {kind}" if kind else text
    return text


def may_wait_in_distributed(stack: Sequence[Site]) -> bool:
    """Whether a rank with this stack may wait in torch.distributed. A cheap test before `position_of`."""
    return any("/torch/distributed/" in site.file for site in stack[:4])


def in_backward(stack: Sequence[Site]) -> bool:
    """Whether a stack ends in torch's backward pass, where data-parallel ranks wait for each other's gradients."""
    return bool(stack) and stack[0].name == "_engine_run_backward"


def _op(stack: Sequence[Site], inner: Site) -> str:
    """Return the public function that contains the innermost frame of torch.distributed."""
    if not inner.name.startswith("_"):
        return inner.name
    outer = (site.name for site in stack if "/torch/distributed/" in site.file)
    return next((name for name in outer if not name.startswith("_") and name != "wrapper"), inner.name)


def telling_frames(stack: Sequence[Site], most: int = 4) -> tuple[Site, ...]:
    """Return the informative frames: the user's own, else a library's, else the innermost."""
    own = [site for site in stack if _frame(site.file, site.name).level == 0]
    libraries = [site for site in stack if _frame(site.file, site.name).level == 1]
    return tuple((own or libraries or list(stack))[:most])


def own_code(file: str) -> bool:
    """Whether a file is the user's own code: outside installed packages, Python, torch and the hook."""
    return _level(rooted(file)) == 0


ASLEEP_SHARE, DOZES_SHARE = 0.003, 0.02
"""Maximum CPU share of the main thread, in cores: of a sleeping rank, and of one that polls or does slow I/O."""
OTHERS_SHARE = 0.15
"""Maximum CPU share of a sleeping rank's other threads, in cores."""
THREAD_SHARE = 0.05
"""Maximum CPU share of one idle thread of the script, in cores: few of them use CPU time in the background."""
GIL_WAKES = 40.0
"""Minimum wakes per second of a thread that waits for the GIL: CPython's switch interval gives 200."""
BUSY_SHARE = 0.2
RESTING_SITES = 2
"""Maximum number of innermost frames in a pulse of a sleeping rank: a poll shows its loop and its wait."""
TREE_PERCENT = 20.0
"""Percent of one core above which a rank's children work for it."""
BYTES = 256 << 10
"""Bytes read or written between two pulses above which a rank does I/O."""
ASLEEP_S = 10.0
SAME_END_S = 0.3
"""Most seconds between the ends of one sleep, as two pulses compute them."""
LOOP_SAMPLES, LOOP_SHARE = 15, 0.8
"""Minimum samples of a loop, and the minimum share of them at a backward jump or the beginning of a function. A long C
call is at a call instead."""
TURNS_SHARE, STATES = 0.25, 3
"""Minimum share of samples in an endless loop of a thread that does not get on, and minimum samples of its condition."""
SPINS_SHARE = 0.8
"""Minimum share of the CPU time of the threads other than the main one that such threads use."""
REPEATS, MOST_FUNCTIONS, REPEATS_SHARE = 6, 6, 0.15
"""Minimum pulses, most functions of the user's own code, and minimum share of samples outside of calls of C code, of a
main thread that only repeats itself. It may call short functions of C, such as len()."""
GPU_PERCENT = 5.0


class Activity(enum.StrEnum):
    STOPPED = "stopped"
    """The kernel does not let it run: a signal, a debugger or the cgroup freezer has stopped it."""
    LEAVING = "leaving"
    """Its script is done, and its interpreter is shutting down."""
    SILENT = "silent"
    """Its hook does not answer and it uses no CPU time."""
    SILENT_BUSY = "silent-busy"
    ASLEEP = "asleep"
    """It is at one place without CPU time for at least ASLEEP_S."""
    GPU_ALONE = "gpu-alone"
    """It is asleep, but its GPU is in use by one of its long kernels or by another process."""
    LOOPS = "loops"
    """It is busy in one function of the user's own code that calls no other."""
    WORKS = "works"
    UNKNOWN = "unknown"


class Doing(NamedTuple):
    """A rank's activity and position in the code."""

    activity: Activity
    position: RankPosition = RankPosition(Kind.UNKNOWN)
    stack: tuple[Site, ...] = ()
    helped: bool = False
    """For WORKS: its main thread waits for other threads, children or its GPU, which work."""
    sure: bool = True
    """For ASLEEP: False if it uses a little CPU time or is in a kernel call that may take long."""
    source: str = ""
    """For a rank with a silent hook: source of the stack and wait in the kernel, as evidence."""
    is_in_kernel: bool = False
    """For SILENT and ASLEEP: whether its main thread was uninterruptible in the kernel (state D) in all samples."""
    awaits_gil: bool = False
    """For SILENT and SILENT_BUSY: whether another thread holds the GIL, for which the main thread waits."""
    holder: RankThread | None = None
    """The thread that holds it, if it is the only one that may."""
    stale: bool = False
    """Whether the stack is older than the hook's silence."""
    sign: str = ""
    """For WORKS, GPU_ALONE and some that are ASLEEP: the evidence as a sentence."""
    move: Movement | None = None
    """For WORKS: what it sends, receives, reads or writes, or that its children work."""
    is_suspect: bool = False
    """For WORKS: whether only a loop of Python code or a thread that it does not wait for uses CPU time."""
    until: float | None = None
    """Unix time at which the single sleep ends that its main thread is in."""
    is_hidden: bool = False
    """For ASLEEP: whether the kernel hides what it reads and writes. It is neither busy nor idle then."""


def doing(
    pulses: Sequence[Pulse],
    *,
    hooked: bool,
    tree_percent: float | None = None,
    gpu_percent: float | None = None,
    sleeps_for_s: float = DEFAULT_S,
) -> Doing:
    """Classify a rank.

    `hooked`: its hook has answered before; `tree_percent`: percent of a core that its process and its children use;
    `gpu_percent`: percent of time that its GPU is in use; `sleeps_for_s`: most seconds of a sleep that is no hang.
    """
    if not pulses:
        return Doing(Activity.UNKNOWN)
    newest = pulses[-1]
    stack = next((pulse.stack for pulse in reversed(pulses) if pulse.stack), ())
    position = position_of(stack)
    if is_halted(newest):
        return Doing(Activity.STOPPED, position, stack)
    if newest.leaving:
        return Doing(Activity.LEAVING, position, stack)
    if not newest.hook:
        return _silent(pulses, hooked, tree_percent, _unanswered(pulses, position, stack))
    if not newest.stack:
        return Doing(Activity.UNKNOWN)
    uses_gpu = gpu_percent is not None and gpu_percent > GPU_PERCENT
    if asleep_s(pulses) >= ASLEEP_S:
        until = _sleeps_until(pulses)
        if until is not None and until - newest.at <= sleeps_for_s:
            return Doing(Activity.WORKS, position, stack, helped=True, sign=_SLEEPS, until=until)
        return _asleep(pulses, position, stack, tree_percent, uses_gpu)._replace(until=until)
    if not uses_gpu and _loops(pulses):
        return Doing(Activity.LOOPS, position, stack)
    if not uses_gpu and _repeats(pulses):
        return Doing(Activity.WORKS, position, stack, sign=_loop_text(pulses), is_suspect=True)
    return Doing(Activity.WORKS, position, stack, sign=_moving(pulses), move=progress.movement(pulses))


def _sleeps_until(pulses: Sequence[Pulse]) -> float | None:
    """Return the Unix time at which the sleep ends that the main thread has been in for two pulses; None without one."""
    before, newest = pulses[-2], pulses[-1]
    if newest.call != "sleep" or newest.until is None or before.until is None:
        return None
    is_same = abs(newest.until - before.until) < SAME_END_S
    return newest.until if is_same and newest.until > newest.at else None


def _asleep(
    pulses: Sequence[Pulse],
    position: RankPosition,
    stack: tuple[Site, ...],
    tree_percent: float | None,
    uses_gpu: bool,
) -> Doing:
    """Classify a rank whose main thread sleeps at one place."""
    sure = _sleeps_without_cpu(pulses)
    move = progress.movement(pulses)
    if move is not None:
        sign = f"its main thread sleeps; it {move.source.does}"
        return Doing(Activity.WORKS, position, stack, helped=True, sure=sure, sign=sign, move=move)
    if (tree_percent or 0.0) > TREE_PERCENT and not _other_threads_work(pulses):
        sign = "its main thread sleeps; its child processes use CPU time"
        return Doing(Activity.WORKS, position, stack, helped=True, sure=sure, sign=sign)
    if _other_threads_work(pulses):
        return _beside_threads(pulses, position, stack, sure)
    if not uses_gpu and progress.is_hidden(pulses[-1]):
        return Doing(Activity.ASLEEP, position, stack, sure=False, sign=_HIDDEN, is_hidden=True)
    if not uses_gpu:
        return Doing(Activity.ASLEEP, position, stack, sure=sure, is_in_kernel=_is_in_kernel(pulses[-3:]))
    # Without the percentage, which would change the evidence and raise the finding again with every sample.
    sign = "its GPU is in use, by it or by another process"
    return Doing(Activity.GPU_ALONE, position, stack, helped=True, sure=sure, sign=sign)


_SLEEPS = "its main thread is in one sleep, whose end is known"
_HIDDEN = "the kernel hides its bytes of files and pipes (/proc/PID/io), so it may read or write slowly"
_AWAITS_THREAD = ("join", "result", "_wait_for_tstate_lock", "as_completed", "shutdown", "_shutdown")
"""Functions of Python in which the main thread waits for the end of a thread or of its work."""


def _beside_threads(
    pulses: Sequence[Pulse], position: RankPosition, stack: tuple[Site, ...], sure: bool
) -> Doing:
    """Classify a rank whose main thread sleeps while other threads of it use CPU time."""
    awaits_thread = any(site.name in _AWAITS_THREAD for site in stack[:6])
    spinning = _spinning_thread(pulses)
    if spinning is not None and not awaits_thread:
        where = f" at {site_text(spinning.stack[0])}" if spinning.stack else ""
        sign = f"its thread {spinning.name} uses CPU time in a loop without calls{where}"
        return Doing(Activity.ASLEEP, position, stack, sure=False, sign=sign)
    turning = () if awaits_thread or pulses[-1].call not in ("futex", "sleep") else _turning(pulses)
    sign = "its main thread sleeps; other threads of it use CPU time"
    if turning:
        sign = f"its main thread sleeps; only its {' and '.join(turning)} works, in an endless loop"
    return Doing(
        Activity.WORKS, position, stack, helped=True, sure=sure, sign=sign, is_suspect=bool(turning)
    )


def _spinning_thread(pulses: Sequence[Pulse]) -> RankThread | None:
    """Return a thread that was in an endless loop without calls in nearly all samples of the newest three pulses."""
    recent = pulses[-3:]
    samples = sum(pulse.samples for pulse in recent)
    for thread in pulses[-1].threads:
        same = [each for pulse in recent for each in pulse.threads if each.name == thread.name]
        in_loop = min(sum(each.loops for each in same), sum(each.turns for each in same))
        if samples >= LOOP_SAMPLES and in_loop >= LOOP_SHARE * samples:
            return thread
    return None


def _turning(pulses: Sequence[Pulse]) -> Sequence[str]:
    """Return the threads that turn in endless loops of the script, if only they and the main one work."""
    recent = _trail(pulses, lambda pulse: bool(pulse.threads))
    if len(recent) < REPEATS:
        return ()
    used = {thread: _cpu_s_in_loops(thread.name, recent) for thread in recent[-1].threads}
    others = _others_s(recent[-1]) - _others_s(recent[0])
    if not sum(used.values()) >= SPINS_SHARE * others > 0:
        return ()
    names: list[str] = []
    for thread, seconds in used.items():
        if seconds > 0:
            where = telling_frames(thread.stack, 1)
            names.append(f"thread {thread.name}" + (f" ({site_text(where[0])})" if where else ""))
    return names


def _cpu_s_in_loops(name: str, pulses: Sequence[Pulse]) -> float:
    """CPU seconds of a thread between the pulses; 0 if it is too seldom in an endless loop."""
    same = [thread for pulse in pulses for thread in pulse.threads if thread.name == name]
    first, last = same[0].cpu_s, same[-1].cpu_s
    turns = sum(thread.turns for thread in same)
    if first is None or last is None or turns < TURNS_SHARE * sum(pulse.samples for pulse in pulses):
        return 0.0
    return last - first


def _others_s(pulse: Pulse) -> float:
    return (pulse.process_s or 0.0) - (pulse.cpu_s or 0.0)


def _other_threads_work(pulses: Sequence[Pulse]) -> bool:
    """Whether threads other than the main one use CPU time, or would if the machine had a free core."""
    return other_threads_share(pulses) > OTHERS_SHARE or _script_thread_works(pulses[-3:])


def _script_thread_works(pulses: Sequence[Pulse]) -> bool:
    """Whether a thread of the script works, by its own CPU time and by the samples in which it runs Python code."""
    samples = sum(pulse.samples for pulse in pulses)
    for thread in pulses[-1].threads:
        same = [each for pulse in pulses for each in pulse.threads if each.name == thread.name]
        used = _share(same[0].cpu_s, thread.cpu_s, pulses[0], pulses[-1])
        if (used or 0.0) > THREAD_SHARE or sum(each.loops for each in same) > REPEATS_SHARE * samples > 0:
            return True
    return False


def _moving(pulses: Sequence[Pulse]) -> str:
    """Describe the progress that these pulses show."""
    first, last = pulses[0], pulses[-1]
    if has_stepped(first, last) or _called(first) < _called(last):
        return "its steps or collectives go on"
    move = progress.movement(pulses)
    if move is not None:
        return f"it {move.source.does}"
    if works(first, last):
        return "it reads or writes"
    # These words do not change while it works: a finding with new evidence is raised again.
    return "it uses CPU time or its stack changes; it has made no step and called no collective since"


_SOURCES = {
    "signal": "this stack was requested by SIGUSR2 to the hook's own thread; it interrupts no call of the script",
    "py-spy": "this stack was read from outside, by py-spy",
}
_STALE = "this stack is the last before its hook fell silent; `distui dump RUN stacks` asks for a newer one"


def _unanswered(pulses: Sequence[Pulse], position: RankPosition, stack: tuple[Site, ...]) -> Doing:
    """Describe a rank whose hook does not answer: the source of its stack and its main thread's wait in the kernel."""
    newest = next((pulse for pulse in reversed(pulses) if pulse.stack), None)
    stale = newest is not None and newest.hook
    origin = ""
    if stale:
        origin = _STALE
    elif newest is not None:
        origin = _SOURCES.get(newest.source, "")
    kernel = f"its main thread waits in the kernel's {pulses[-1].waits_in}" if pulses[-1].waits_in else ""
    source = "; ".join(note for note in (origin, kernel) if note)
    return Doing(Activity.UNKNOWN, position, stack, source=source, stale=stale)


def _silent(pulses: Sequence[Pulse], hooked: bool, tree_percent: float | None, unanswered: Doing) -> Doing:
    trail = _trail(pulses, lambda pulse: not pulse.hook)
    if not hooked or len(trail) < 2:
        return unanswered
    if works(trail[0], trail[-1]):
        return unanswered._replace(activity=Activity.WORKS)
    used = _share(trail[0].process_s, trail[-1].process_s, trail[0], trail[-1])
    if used is None and tree_percent is not None:
        used = tree_percent / 100.0
    # On an overloaded machine it gets little CPU time, but every sample finds it ready to run.
    busy = all(pulse.state == "R" for pulse in trail) or (used is not None and used > BUSY_SHARE)
    awaits_gil = _awaits_gil(trail)
    return unanswered._replace(
        activity=Activity.SILENT_BUSY if busy else Activity.SILENT,
        is_in_kernel=_is_in_kernel(trail),
        awaits_gil=awaits_gil,
        holder=_gil_holder(trail[-1]) if awaits_gil else None,
    )


def _is_in_kernel(pulses: Sequence[Pulse]) -> bool:
    return all(pulse.state == "D" for pulse in pulses)


def _awaits_gil(pulses: Sequence[Pulse]) -> bool:
    """Whether the main thread waits for the GIL: CPython wakes such a thread every 5 ms to ask for it."""
    counted = [pulse for pulse in pulses if pulse.work is not None]
    if len(counted) < 2:
        return False
    first, last = counted[0], counted[-1]
    before, after = (None if pulse.work is None else pulse.work.main_wakes for pulse in (first, last))
    wakes = _share(before, after, first, last)
    return wakes is not None and wakes >= GIL_WAKES


def _gil_holder(pulse: Pulse) -> RankThread | None:
    """Return the only thread of the script that is not in one of Python's waits."""
    able = [thread for thread in pulse.threads if not thread.error and wait_text(thread.stack) == BLOCKED]
    return able[0] if len(able) == 1 else None


def _trail(pulses: Sequence[Pulse], fits: Callable[[Pulse], bool]) -> list[Pulse]:
    """Return the newest consecutive pulses that fit, oldest first."""
    trail: list[Pulse] = []
    for pulse in reversed(pulses):
        if not fits(pulse):
            break
        trail.append(pulse)
    return trail[::-1]


def asleep_s(pulses: Sequence[Pulse]) -> float:
    """Seconds that the main thread has slept at one place; 0 with fewer than 3 such pulses."""
    newest = pulses[-1]
    here = position_of(newest.stack)
    count, since = 1, newest.at
    for before, after in zip(reversed(pulses[:-1]), reversed(pulses[1:]), strict=True):
        same = before.stack == newest.stack
        if not (same or position_of(before.stack) == here) or not _rested(before, after, same):
            break
        count, since = count + 1, before.at
    return newest.at - since if count >= 3 else 0.0


def _rested(before: Pulse, after: Pulse, same_stack: bool) -> bool:
    """Whether the main thread showed no work and used almost no CPU time between the pulses."""
    if (after.sites or 1) > RESTING_SITES or not before.hook or works(before, after):
        return False
    if after.state == "R":  # on an overloaded machine it gets no CPU time
        return False
    used = _share(before.cpu_s, after.cpu_s, before, after)
    return used is not None and used <= (DOZES_SHARE if same_stack else ASLEEP_SHARE)


def still_since(pulses: Sequence[Pulse]) -> float:
    """Unix time of the first sample with the newest stack (or without one, while idle) since the last sign of work."""
    newest = pulses[-1]
    same = _trail(pulses, lambda it: it.stack == newest.stack or (not it.stack and _idled(it, newest)))
    if works(same[0], newest):
        same = _trail(same, lambda it: not works(it, newest))
    return same[0].at


def _sleeps_without_cpu(pulses: Sequence[Pulse]) -> bool:
    """Whether it uses no CPU time at all and is not in the kernel's uninterruptible I/O sleep."""
    first, last = pulses[-3], pulses[-1]
    used = _share(first.cpu_s, last.cpu_s, first, last)
    return used is not None and used <= ASLEEP_SHARE and last.state != "D"


def _idled(before: Pulse, after: Pulse) -> bool:
    """Whether the process used almost no CPU time between the pulses."""
    used = _share(before.process_s, after.process_s, before, after)
    return used is not None and used <= DOZES_SHARE


def works(before: Pulse, after: Pulse) -> bool:
    """Whether steps, collectives or I/O bytes increased, which shows work."""
    if has_stepped(before, after) or _grew(before.read_bytes, after.read_bytes):
        return True
    if _grew(before.written_bytes, after.written_bytes):
        return True
    if progress.moved(before, after, only_main=True) is not None:
        return True
    if not before.groups or not after.groups:
        return False
    return _called(before) < _called(after)


def has_stepped(before: Pulse, after: Pulse) -> bool:
    """Whether the rank is known to have made an optimizer step between the pulses."""
    if after.step is None:
        return False
    if before.step is None:  # with an answer of the hook: it had no optimizer yet
        return before.hook and after.step > 0
    return before.step < after.step


def _grew(before: int | None, after: int | None) -> bool:
    return before is not None and after is not None and after - before > BYTES


def _called(pulse: Pulse) -> int:
    return sum(group.enqueued for group in pulse.groups)


def _share(before: float | None, after: float | None, earlier: Pulse, later: Pulse) -> float | None:
    """CPU share in cores between two pulses; None if unknown."""
    if before is None or after is None or later.at <= earlier.at:
        return None
    return (after - before) / (later.at - earlier.at)


def other_threads_share(pulses: Sequence[Pulse]) -> float:
    """CPU share in cores of all threads but the main one over the newest three pulses."""
    first, last = pulses[-3], pulses[-1]
    every = _share(first.process_s, last.process_s, first, last)
    main = _share(first.cpu_s, last.cpu_s, first, last)
    return 0.0 if every is None or main is None else every - main


def _loops(pulses: Sequence[Pulse]) -> bool:
    """Whether it spins in one function of the user's own code: one thread, one place, no visible work.

    Another thread can interrupt a loop without calls only at its backward jump, so all samples show one line.
    """
    innermost = pulses[-1].stack[0]
    if not own_code(innermost.file) or position_of(pulses[-1].stack).kind is not Kind.CODE:
        return False
    trail = _trail(pulses, lambda it: it.hook and it.stack[:1] == (innermost,) and it.sites == 1)
    if len(trail) < 3 or trail[-1].at - trail[0].at < ASLEEP_S or works(trail[0], trail[-1]):
        return False
    return _jumps_back(trail) and _is_alone(trail) and _turns_endlessly(trail)


def _jumps_back(trail: Sequence[Pulse], share: float = LOOP_SHARE) -> bool:
    """Whether enough samples are in a loop of Python code: not in a call of C code."""
    samples = sum(pulse.samples for pulse in trail)
    loops = sum(pulse.loops or 0 for pulse in trail)
    return samples >= LOOP_SAMPLES and loops >= share * samples


def _is_alone(trail: Sequence[Pulse]) -> bool:
    """Whether the main thread is busy, and the other threads are not."""
    main = _share(trail[0].cpu_s, trail[-1].cpu_s, trail[0], trail[-1])
    # On an overloaded machine it gets little CPU time, but every sample finds it ready to run.
    busy = main is not None and (main >= BUSY_SHARE or all(pulse.state == "R" for pulse in trail))
    return busy and other_threads_share(trail) <= OTHERS_SHARE


def _repeats(pulses: Sequence[Pulse]) -> bool:
    """Whether the main thread turns in an endless loop of the user's own Python code, without any effect."""
    first, newest = pulses[0], pulses[-1]
    if len(pulses) < REPEATS or not all(pulse.hook and pulse.stack for pulse in pulses):
        return False
    if works(first, newest) or progress.movement(pulses) is not None:
        return False
    if not _jumps_back(pulses, REPEATS_SHARE) or not _is_alone(pulses) or not _turns_endlessly(pulses):
        return False
    functions = set[tuple[str, str]]()
    for pulse in pulses:
        levels = [_frame(site.file, site.name).level for site in pulse.stack]
        if not set(levels) <= {0, _PYTHON_LEVEL} or 0 not in levels:
            return False
        own = pulse.stack[levels.index(0)]
        functions.add((own.file, own.name))
    return len(functions) <= MOST_FUNCTIONS


def _loop_text(pulses: Sequence[Pulse]) -> str:
    loop = next(pulse.endless for pulse in reversed(pulses) if pulse.endless is not None)
    place = f"{loop.file.rpartition('/')[2]}:{loop.line}"
    return f"it turns in the loop at {place}, whose condition reads the same values in every sample"


def _turns_endlessly(pulses: Sequence[Pulse]) -> bool:
    """Whether the main thread is mostly in one endless loop, whose condition reads the same few values again.

    A long computation is in a loop that ends, or the values change: an index, the size of a queue.
    """
    loops = [pulse.endless for pulse in pulses if pulse.endless is not None]
    same = [loop for loop in loops if (loop.file, loop.line) == (loops[-1].file, loops[-1].line)]
    states = [loop.state for loop in same if loop.state is not None]
    if len(states) < STATES or len(set(states)) > len(states) / 2:
        return False
    return sum(loop.samples for loop in same) >= TURNS_SHARE * sum(pulse.samples for pulse in pulses)


def is_halted(pulse: Pulse) -> bool:
    """Whether the kernel does not let the process run: a signal, a debugger or the cgroup freezer has stopped it."""
    return pulse.state in ("T", "t") or pulse.frozen
