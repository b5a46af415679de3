"""torch's elastic launcher, controlled through two public plug-ins: a RendezvousHandler and a LogsSpecs.

After a restart was requested, the handler reports a waiting node until the next rendezvous. torch then restarts the
group through that rendezvous and counts no retry. The LogsSpecs gives every attempt new files, and changes the ranks'
environment. The signatures of both are unchanged from torch 2.7 to 2.15.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from . import deepspeed_cpu, env_changes, relay, rendezvous
from .attempt_round import Round
from .control import private
from .import_watch import collection_paused
from .joining import drop_deprecated_variable
from .rank_changes import defaulted, version_of
from .rank_processes import children
from .rendezvous import set_rendezvous
from .reporter import Reporter
from .worker_group import SIGNALS, RunStopped, WorkerGroup, handle_stop_signals

Ending = tuple[str, int, str]
"""How the run ended: phase, exit code and a sentence."""


class NotSpawned(Exception):
    """Not all ranks of an attempt could be started. The text is the reason."""


BROKEN = (ImportError, OSError, RuntimeError, AttributeError)
"""Exceptions from the import of a torch that does not fit its environment."""


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
    """Run attempts until the ranks succeed, are stopped, or the policy gives up. Raises NotSpawned."""

    def stop(number: int, frame: FrameType | None) -> None:
        """End the run on a signal during the import of torch or the rendezvous; later torch installs its handlers."""
        _note_stop(group, number)
        raise RunStopped

    try:
        handle_stop_signals(stop)
        return _launch(group)
    except RunStopped:
        return _stopped(group)


def on_check(group: WorkerGroup) -> None:
    """Act on torch's checks of the ranks. At the first, all ranks are started, and torch's signal handlers are set.

    Wrap these handlers, so that the signal is noted before torch ends the ranks.
    """
    group.spawning, group.variables.undo = False, {}
    for number in SIGNALS:
        torch_handler = signal.getsignal(number)
        if callable(torch_handler) and not hasattr(torch_handler, "of_distui"):
            signal.signal(number, _noting_stop(group, torch_handler))


def _noting_stop(group: WorkerGroup, torch_handler: Any) -> Any:
    def noted(number: int, frame: FrameType | None) -> None:
        _note_stop(group, number)
        torch_handler(number, frame)

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
        # else the store logs a stack for each closed connection, in addition to its exception
        with defaulted("TORCH_CPP_LOG_LEVEL", "ERROR"), collection_paused():
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
        raise RunStopped  # the interrupted import may have swallowed this exception
    try:
        launched = prepare(group, version_of(torch.__version__))
    except ValueError as error:
        return "failed", 1, str(error)
    ending: Ending = ("succeeded", 0, "every rank ended with exit code 0")
    try:
        launch_agent(*launched)
    except GaveUp as error:
        return "failed", 1, str(error)
    except SignalException:
        return _stopped(group)
    except (ChildFailedError, RendezvousError, RuntimeError, OSError, ValueError, AssertionError) as error:
        if _failed_to_spawn(group, error):
            raise NotSpawned(first_line(error)) from error
        ending = ("failed", 1, first_line(error))
    return _stopped(group) if group.stopping else ending


def _failed_to_spawn(group: WorkerGroup, error: Exception) -> bool:
    return group.spawning and not group.stopping and isinstance(error, (OSError, ValueError))


def start_again(group: WorkerGroup, why: str) -> Ending:
    """After ranks could not be started: become a new runner if the policy allows it, without the newest changes."""
    text = "the ranks of attempt %d could not be started: %s" % (group.attempt, why)
    group.report("AttemptEnded", attempt=group.attempt, outcome="failed", text=text)
    group.spawning = False
    if not group.roll_back(text) and not group.back_off():
        if group.deaths.refusal:
            text = "%s; %s" % (text, group.deaths.refusal)
        return "failed", 1, text
    if group.stopping:
        return _stopped(group)
    group.take_env()  # changes that were requested since
    os.environ.update({**group.variables.unset(), **_left_out(group)})
    group.report.close()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    launch = os.path.join(os.path.dirname(os.path.abspath(__file__)), "launch.py")
    try:
        # this keeps the pid, which identifies the runner, and drops everything that torch left in this process
        os.execv(
            sys.executable, [sys.executable, "-u", launch, group.run_dir, str(group.failures), "failure"]
        )
    except OSError as error:
        group.report = Reporter(os.path.join(group.run_dir, "runner.jsonl"), group.poke, ".run")
        return "failed", 1, "%s; the runner could not restart either: %s" % (text, error)


def _left_out(group: WorkerGroup) -> dict[str, str]:
    """Return the variable with the arguments that plan.json omits, for the next runner: see runner.with_secrets."""
    with open(os.path.join(group.run_dir, "plan.json")) as file:
        written = json.load(file)["argv"]
    argv = {str(at): word for at, word in enumerate(group.plan["argv"]) if word != written[at]}
    return {"DISTUI_SECRET_WORDS": json.dumps({"argv": argv})} if argv else {}


def prepare(group: WorkerGroup, version: tuple[int, int]) -> tuple[Any, Any, list[str]]:
    """Return the arguments of torch's launch_agent. Raises ValueError with a sentence."""
    from torch.distributed import run as torchrun

    if version < (2, 7):
        raise ValueError(
            "torch %d.%d in %s is too old: distui needs 2.7 or newer there" % (*version, sys.executable)
        )
    drop_deprecated_variable(version)
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            args = torchrun.parse_args(list(group.plan["argv"]))
        set_rendezvous(args, group.plan)
        args.log_dir = os.devnull  # make_logs replaces it; by default torch leaves an empty folder in /tmp
        config, command, command_args = torchrun.config_from_args(args)
    except SystemExit:
        raise ValueError("torchrun refused the arguments: %s" % last_line(stderr.getvalue())) from None
    except (ValueError, AssertionError) as error:
        raise ValueError("torchrun refused the arguments: %s" % error) from None
    plug_in(group, config, lambda: on_check(group))
    return config, command, command_args


def first_line(error: BaseException) -> str:
    """Return the type and the first line of an exception that is neither empty nor a ruler."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" =-")]
    return "%s: %s" % (type(error).__name__, lines[0] if lines else "no message")


def last_line(text: str) -> str:
    """Return the last line that is not empty: there argparse names the reason."""
    return ([line.strip() for line in text.splitlines() if line.strip()] or ["no message"])[-1]


class GaveUp(Exception):
    """The restart policy allows no further attempt."""


def plug_in(group: WorkerGroup, config: Any, on_check: Callable[[], None]) -> None:
    """Put our rendezvous handler and log layout into a LaunchConfig.

    The launcher calls `on_check` in its thread at each check of healthy ranks. Raises ValueError with a sentence if the
    nodes cannot meet.
    """
    from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry

    backend, coordinator = config.rdzv_backend, rendezvous.prepare(config, group.run_dir)

    def make(params: Any) -> Any:
        inner = RendezvousParameters(
            backend=backend,
            endpoint=params.endpoint,
            run_id=params.run_id,
            min_nodes=params.min_nodes,
            max_nodes=params.max_nodes,
            local_addr=params.local_addr,
            **params.config,
        )
        return make_handler(group, rendezvous.handler(inner, coordinator), on_check)

    if coordinator is not None:
        relay.start(coordinator, group.plan, group.control)
    rendezvous_handler_registry.register("distui", make)
    config.rdzv_backend = "distui"
    config.logs_specs = make_logs(group)


def make_handler(group: WorkerGroup, inner: Any, on_check: Callable[[], None]) -> Any:
    """Wrap a RendezvousHandler with the group's restarts and its restart policy."""
    from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousHandler

    round_ = Round()

    class Handler(RendezvousHandler):  # type: ignore[misc]  # torch has no types here
        use_agent_store = property(lambda self: inner.use_agent_store)

        def get_backend(self) -> str:
            return "distui"

        def next_rendezvous(self) -> Any:
            before_attempt(group, round_)
            info = inner.next_rendezvous()
            group.agreed_number = round_.begin(info, group.next_number())
            return info

        def num_nodes_waiting(self) -> int:
            on_check()
            try:
                waiting: int = inner.num_nodes_waiting()
            except RendezvousError:  # the first node has left; torch now ends the ranks here
                group.ending = True
                raise
            group.ending = group.ending or waiting > 0  # torch ends the ranks for the waiting nodes
            if not group.restart.is_set():
                return waiting
            round_.announce_restart()
            return max(waiting, 1)

        is_closed, set_closed = staticmethod(inner.is_closed), staticmethod(inner.set_closed)
        get_run_id, shutdown = staticmethod(inner.get_run_id), staticmethod(inner.shutdown)

    return Handler()


def before_attempt(group: WorkerGroup, round_: Round) -> None:
    """Note the cause of the next attempt, and after a failure wait as the policy requires.

    Raises GaveUp and RunStopped.
    """
    group.wait_for_exits()
    if group.attempt:
        group.cause = "membership"
        if _has_failed(group, round_):
            group.cause = "failure"
            if not group.back_off():
                raise GaveUp(group.deaths.refusal)
    if group.stopping:
        raise RunStopped
    if group.restart.is_set():
        if group.attempt:
            group.cause = "restart"
        group.restart.clear()


def _has_failed(group: WorkerGroup, round_: Round) -> bool:
    """Return whether the attempt ended by a failure here. A rank whose process was never found has failed early."""
    if not group.failed.is_set() and not group.unidentified:
        return False
    return not group.restart.is_set() and not round_.restart_announced()


def make_logs(group: WorkerGroup) -> Any:
    """Return a LogsSpecs that uses new files for each attempt."""
    from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

    class Logs(LogsSpecs):  # type: ignore[misc]  # torch has no types here
        root_log_dir = property(lambda self: group.run_dir)

        def reify(self, envs: dict[int, dict[str, str]]) -> Any:
            return LogsDest(**start_attempt(group, envs))

    return Logs()


def start_attempt(group: WorkerGroup, envs: dict[int, dict[str, str]]) -> dict[str, dict[int, str]]:
    """Fill the environments of the local ranks and return the files of their output. `envs`: local rank → variables."""
    diff = group.take_env()
    directory = group.next_attempt()
    places = []
    paths: dict[str, dict[int, str]] = {"stdouts": {}, "stderrs": {}, "error_files": {}}
    for local, env in sorted(envs.items()):
        rank = int(env.get("RANK", local))
        stem = os.path.join(directory, "rank-%d" % rank)
        paths["stdouts"][local] = stem + ".out"
        paths["stderrs"][local] = stem + ".err"
        for name in (stem + ".out", stem + ".err"):
            os.close(private(name, os.O_WRONLY | os.O_CREAT))  # torch would apply the user's umask
        paths["error_files"][local] = stem + ".error.json"
        # torch copied some variables before the changes
        env_changes.apply(group.variables.lasting, env)
        env.update(rank_env(group, local, stem))
        places.append({"rank": rank, "local_rank": local, "node": group.node, "gpu": gpu_of(local)})
    world = int(envs[min(envs)].get("WORLD_SIZE", len(envs))) if envs else 0
    group.report_attempt(places, world, diff)
    group.watch(places, children())
    group.spawning = True
    return {
        **paths,
        "tee_stdouts": group.echo(1, paths["stdouts"]),
        "tee_stderrs": group.echo(2, paths["stderrs"]),
    }


def rank_env(group: WorkerGroup, local: int, stem: str) -> dict[str, str]:
    """Return the variables of a rank that depend on the attempt."""
    env = {
        "TORCHELASTIC_ERROR_FILE": stem + ".error.json",
        "NCCL_DEBUG_FILE": stem + ".nccl",
        "DISTUI_RUNNER_PID": str(os.getpid()),
        "DISTUI_ATTEMPT": str(group.attempt),
        "DISTUI_RANK_FILES": stem,
    }
    if group.plan["hook"]:
        env["DISTUI_HOOK"] = "%s.r%d" % (os.environ["DISTUI_SOCKETS"], local)
    return {**env, **python_path(group.plan["hook"])}


def python_path(hook: bool) -> dict[str, str]:
    """Return PYTHONPATH with the folder `site` first, for the hook and for DeepSpeed over gloo."""
    environ = os.environ
    if not (hook or deepspeed_cpu.is_needed(environ)):
        return {}
    site = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
    rest = [folder for folder in environ.get("PYTHONPATH", "").split(os.pathsep) if folder != site]
    return {"PYTHONPATH": os.pathsep.join([site, *rest] if any(rest) else [site])}


def gpu_of(local: int) -> str | None:
    """Return the GPU of a local rank according to CUDA_VISIBLE_DEVICES; None if the plan uses none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if os.environ.get("DISTUI_BACKEND") != "nccl":
        return None
    if visible is None:
        return str(local)
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return names[local] if local < len(names) else None
