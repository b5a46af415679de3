"""torch's own elastic launcher, steered through two of its public plug-in points (see plugin.py)."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
from types import FrameType
from typing import Any

from .control import Reporter
from .output_filter import errors_alone
from .plugin import GaveUp, plug_in
from .rendezvous import meet
from .worker_group import SIGNALS, RunStopped, WorkerGroup, heed

Ending = tuple[str, int, str]
"""Phase, exit code and a sentence: how the run ended."""


class NotSpawned(Exception):
    """No rank of an attempt could be started; the text is the reason."""


BROKEN = (ImportError, OSError, RuntimeError, AttributeError)
"""What importing a torch that does not fit its environment raises."""


def run(group: WorkerGroup) -> int:
    """Launch the plan's ranks and return the exit code of the run."""
    try:
        phase, code, text = attempt_all(group)
    except NotSpawned as error:
        try:
            phase, code, text = start_again(group, str(error))
        except RunStopped:
            phase, code, text = _stopped(group)
    group.end(phase, code, text)
    return code


def attempt_all(group: WorkerGroup) -> Ending:
    """One attempt after another until the ranks succeed, are stopped, or the policy gives up. Raises NotSpawned."""
    try:
        heed_signals(group)
        return _launch(group)
    except RunStopped:
        return _stopped(group)


def heed_signals(group: WorkerGroup) -> None:
    """A signal ends the run also while torch is imported or the ranks meet; torch's own handlers come later."""

    def stop(number: int, frame: FrameType | None) -> None:
        _note_stop(group, number)
        raise RunStopped

    heed(stop)


def on_check(group: WorkerGroup) -> None:
    """At each of torch's looks at its ranks: they were started, and its handlers are set."""
    group.spawning, group.variables.undo = False, {}
    heed_torch_signals(group)


def heed_torch_signals(group: WorkerGroup) -> None:
    """torch sets its handlers at each start of the ranks: have them tell us before they act."""
    for number in SIGNALS:
        theirs = signal.getsignal(number)
        if callable(theirs) and not hasattr(theirs, "of_distui"):
            signal.signal(number, _before(group, theirs))


def _before(group: WorkerGroup, theirs: Any) -> Any:
    def noted(number: int, frame: FrameType | None) -> None:
        _note_stop(group, number)
        theirs(number, frame)

    noted.of_distui = True  # type: ignore[attr-defined]
    return noted


def _note_stop(group: WorkerGroup, number: int) -> None:
    if not group.stopping:
        group.stopped_by = signal.Signals(number).name
    group.stopping = group.ending = True


def _stopped(group: WorkerGroup) -> Ending:
    return "stopped", 1, "stopped by %s" % group.stopped_by if group.stopped_by else "stopped"


def _launch(group: WorkerGroup) -> Ending:
    try:
        with errors_alone():
            import torch
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.elastic.rendezvous import RendezvousError
        from torch.distributed.launcher.api import launch_agent
    except BROKEN as error:
        group.started()
        return "failed", 1, "no usable torch in %s: %s" % (sys.executable, first_line(error))
    group.started(torch.__version__)
    if group.stopping:
        raise RunStopped  # an import that was interrupted may have swallowed it
    try:
        launched = prepare(group, version_of(torch.__version__))
    except ValueError as error:
        return "failed", 1, str(error)
    try:
        launch_agent(*launched)
    except GaveUp as error:
        return "failed", 1, str(error)
    except SignalException:
        return _stopped(group)
    except (ChildFailedError, RendezvousError, RuntimeError, OSError, ValueError, AssertionError) as error:
        if group.spawning and isinstance(error, (OSError, ValueError)) and not group.stopping:
            raise NotSpawned(first_line(error)) from error
        return _stopped(group) if group.stopping else ("failed", 1, first_line(error))
    return _stopped(group) if group.stopping else ("succeeded", 0, "every rank ended with exit code 0")


def start_again(group: WorkerGroup, why: str) -> Ending:
    """Ranks could not be started: become a new runner as the policy says, with the environment that worked before."""
    text = "the ranks of attempt %d could not be started: %s" % (group.attempt, why)
    group.report("AttemptEnded", attempt=group.attempt, outcome="failed", text=text)
    group.spawning = False
    if not group.roll_back(text) and not group.back_off():
        return "failed", 1, "%s; %s" % (text, group.deaths.why) if group.deaths.why else text
    if group.stopping:
        return _stopped(group)
    group.take_env()  # asked for meanwhile
    os.environ.update({**group.variables.unset(), **_left_out(group)})
    group.report.close()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    launch = os.path.join(os.path.dirname(os.path.abspath(__file__)), "launch.py")
    try:
        os.execv(
            sys.executable, [sys.executable, "-u", launch, group.run_dir, str(group.failures), "failure"]
        )
    except OSError as error:
        group.report = Reporter(os.path.join(group.run_dir, "runner.jsonl"), group.control.poke, ".run")
        return "failed", 1, "%s; nor could the runner start anew: %s" % (text, error)


def _left_out(group: WorkerGroup) -> dict[str, str]:
    """The arguments that plan.json hides, for the runner that this process becomes: see runner.with_secrets."""
    with open(os.path.join(group.run_dir, "plan.json")) as file:
        written = json.load(file)["argv"]
    argv = {str(at): word for at, word in enumerate(group.plan["argv"]) if word != written[at]}
    return {"DISTUI_SECRET_WORDS": json.dumps({"argv": argv})} if argv else {}


def prepare(group: WorkerGroup, version: tuple[int, int]) -> tuple[Any, Any, list[str]]:
    """What torch's launch_agent takes. Raises ValueError with a sentence."""
    from torch.distributed import run as torchrun

    if version < (2, 7):
        raise ValueError(
            "torch %d.%d in %s is too old: distui needs 2.7 or newer there" % (*version, sys.executable)
        )
    drop_old_name(version)
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            args = torchrun.parse_args(list(group.plan["argv"]))
        meet(args, group.plan)
        args.log_dir = os.devnull  # ours takes its place, and torch would leave an empty folder in /tmp
        config, command, command_args = torchrun.config_from_args(args)
    except SystemExit:
        raise ValueError("torchrun refused the arguments: %s" % last_line(stderr.getvalue())) from None
    except (ValueError, AssertionError) as error:
        raise ValueError("torchrun refused the arguments: %s" % error) from None
    plug_in(group, config, lambda: on_check(group))
    return config, command, command_args


def version_of(text: str) -> tuple[int, int]:
    """Major and minor of a version such as "2.13.0a0+git1234"."""
    major, minor = text.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def drop_old_name(version: tuple[int, int]) -> None:
    """torch 2.9 and newer warn in every rank about the flight recorder's old name; the new one says the same."""
    old = os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE")
    if version >= (2, 9) and old == os.environ.get("TORCH_FR_BUFFER_SIZE"):
        os.environ.pop("TORCH_NCCL_TRACE_BUFFER_SIZE", None)


def first_line(error: BaseException) -> str:
    """Type and first line of an exception that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" =-")]
    return "%s: %s" % (type(error).__name__, lines[0] if lines else "no message")


def last_line(text: str) -> str:
    """The last line that says something; argparse puts the reason there."""
    return ([line.strip() for line in text.splitlines() if line.strip()] or ["no message"])[-1]
