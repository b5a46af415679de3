"""Our part in torch's elastic launcher: a RendezvousHandler, and a LogsSpecs.

The handler answers `num_nodes_waiting() >= 1` once when a restart was asked for: torch then restarts the group
through a new rendezvous, and no retry is counted. The LogsSpecs gives every attempt files of its own, and
changes the ranks' environment. Both are public, with unchanged signatures from torch 2.7 to 2.15.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from . import child_processes, env_changes, relay, rendezvous
from .output_filter import private
from .rendezvous import Round
from .worker_group import RunStopped, WorkerGroup


class GaveUp(Exception):
    """The restart policy allows no further attempt."""


def plug_in(group: WorkerGroup, config: Any, on_check: Callable[[], None]) -> None:
    """Put our rendezvous handler and log layout into a LaunchConfig.

    `on_check` is called in the launcher's own thread, at each of its looks at healthy ranks. Raises ValueError with a
    sentence when the nodes cannot meet.
    """
    from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry

    backend, place = config.rdzv_backend, rendezvous.prepare(config, group.run_dir)

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
        return make_handler(group, rendezvous.handler(inner, place), on_check)

    if place is not None:
        relay.start(place, group.plan, group.control)
    rendezvous_handler_registry.register("distui", make)
    config.rdzv_backend = "distui"
    config.logs_specs = make_logs(group)


def make_handler(group: WorkerGroup, inner: Any, on_check: Callable[[], None]) -> Any:
    """Wrap a RendezvousHandler with the group's restarts and its policy."""
    from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousHandler

    met = Round()

    class Handler(RendezvousHandler):  # type: ignore[misc]  # torch is not looked at for types
        use_agent_store = property(lambda self: inner.use_agent_store)

        def get_backend(self) -> str:
            return "distui"

        def next_rendezvous(self) -> Any:
            before_attempt(group, met)
            info = inner.next_rendezvous()
            group.agreed = met.begin(info, group.next_number())
            return info

        def num_nodes_waiting(self) -> int:
            on_check()
            try:
                waiting: int = inner.num_nodes_waiting()
            except RendezvousError:  # the head is gone, and torch ends the ranks here
                group.ending = True
                raise
            group.ending = group.ending or waiting > 0  # torch ends the ranks for those who wait
            if not group.restart.is_set():
                return waiting
            met.announce_restart()
            return max(waiting, 1)

        def is_closed(self) -> bool:
            return bool(inner.is_closed())

        def set_closed(self) -> None:
            inner.set_closed()

        def get_run_id(self) -> str:
            return str(inner.get_run_id())

        def shutdown(self) -> bool:
            return bool(inner.shutdown())

    return Handler()


def before_attempt(group: WorkerGroup, met: Round) -> None:
    """Why is there a next attempt? Asked for: at once. A failure: as the policy says, in its own time.

    Raises GaveUp and RunStopped.
    """
    group.settle()
    group.cause = "membership" if group.attempt else group.cause
    # A rank that was never seen has failed before anybody could look.
    failed = group.failed.is_set() or bool(group.unseen)
    if group.attempt and not group.restart.is_set() and failed and not met.restart_announced():
        group.cause = "failure"
        if not group.back_off():
            raise GaveUp(group.deaths.why)
    if group.stopping:
        raise RunStopped
    if group.restart.is_set():
        group.cause = "restart" if group.attempt else group.cause
        group.restart.clear()


def make_logs(group: WorkerGroup) -> Any:
    """A LogsSpecs whose files are never reused."""
    from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

    class Logs(LogsSpecs):  # type: ignore[misc]  # torch is not looked at for types
        root_log_dir = property(lambda self: group.run_dir)

        def reify(self, envs: dict[int, dict[str, str]]) -> Any:
            return LogsDest(**start_attempt(group, envs))

    return Logs()


def start_attempt(group: WorkerGroup, envs: dict[int, dict[str, str]]) -> dict[str, dict[int, str]]:
    """Fill the environment of each local rank and say where its output goes. `envs`: local rank → variables."""
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
            os.close(private(name, os.O_WRONLY | os.O_CREAT))  # torch opens them by the user's umask
        paths["error_files"][local] = stem + ".error.json"
        env_changes.apply(
            group.variables.lasting, env
        )  # torch has copied some variables before we had changed them
        env.update(rank_env(group, local, stem))
        places.append({"rank": rank, "local_rank": local, "node": group.node, "gpu": gpu_of(local)})
    world = int(envs[min(envs)].get("WORLD_SIZE", len(envs))) if envs else 0
    group.report(
        "AttemptStarted",
        attempt=group.attempt,
        cause=group.cause,
        world_size=world,
        ranks=places,
        env_diff=diff,
        failures=group.failures,
    )
    group.watch(places, child_processes.children())
    group.spawning = True
    return {
        **paths,
        "tee_stdouts": group.echo(1, paths["stdouts"]),
        "tee_stderrs": group.echo(2, paths["stderrs"]),
    }


def rank_env(group: WorkerGroup, local: int, stem: str) -> dict[str, str]:
    """Variables that only the start of an attempt can know."""
    env = {
        "TORCHELASTIC_ERROR_FILE": stem + ".error.json",
        "NCCL_DEBUG_FILE": stem + ".nccl",
        "DISTUI_RUNNER_PID": str(os.getpid()),
        "DISTUI_ATTEMPT": str(group.attempt),
        "DISTUI_RANK_FILES": stem,
    }
    folders = ["site"] if group.plan["hook"] else []
    if group.plan["hook"]:
        env["DISTUI_HOOK"] = "%s.r%d" % (os.environ["DISTUI_SOCKETS"], local)
    return {**env, **python_path(folders)}


def python_path(folders: list[str]) -> dict[str, str]:
    """PYTHONPATH with these folders of ours in front, and with the one for DeepSpeed on CPU where that is planned."""
    environ = os.environ
    if environ.get("DISTUI_BACKEND") == "gloo" and environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        folders = [*folders, "cpu"]
    if not folders:
        return {}
    here = os.path.dirname(os.path.abspath(__file__))
    rest = environ.get("PYTHONPATH", "")
    return {
        "PYTHONPATH": os.pathsep.join(
            [os.path.join(here, name) for name in folders] + ([rest] if rest else [])
        )
    }


def gpu_of(local: int) -> str | None:
    """The GPU that the launch environment gives to a local rank; None when the plan uses none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if os.environ.get("DISTUI_BACKEND") != "nccl":
        return None
    if visible is None:
        return str(local)
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return names[local] if local < len(names) else None
