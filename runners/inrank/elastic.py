"""torch's own elastic launcher, steered through two of its public plug-in points.

A RendezvousHandler around c10d answers `num_nodes_waiting() >= 1` once when a restart was asked for: torch then
restarts the group through a new rendezvous, and no retry is counted. A LogsSpecs gives every attempt files of
its own, and changes the ranks' environment. Public in torch 2.7 to 2.15, with unchanged signatures.
"""

import os
import socket
import sys
import time

from . import runner
from .policy import after_failure


class GaveUp(Exception):
    """The restart policy allows no further attempt."""


class Stopped(Exception):
    """A stop came while the group waited for its next attempt."""


def run(group, nested):
    """Launch the plan's ranks and return the exit code of the run."""
    try:
        import torch
        from torch.distributed import run as torchrun
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import launch_agent
    except ImportError as error:
        runner.started(group)
        return end(group, nested, "failed", 1, "no usable torch in %s: %s" % (sys.executable, error))
    runner.started(group, torch.__version__)
    problem = too_old(torch.__version__)
    if problem:
        return end(group, nested, "failed", 1, problem)
    try:
        args = torchrun.parse_args(list(group.plan["argv"]))
        config, command, command_args = torchrun.config_from_args(args)
    except (ValueError, SystemExit) as error:
        return end(group, nested, "failed", 1, "torchrun refused the arguments: %s" % error)
    problem = None if nested else port_problem(config.rdzv_endpoint)
    if problem:
        return end(group, nested, "failed", 1, problem)
    plug_in(group, config)
    signals = torch_signals()
    try:
        launch_agent(config, command, command_args)
    except GaveUp as error:
        return end(group, nested, "failed", 1, str(error))
    except (ChildFailedError, RuntimeError, Stopped, signals) as error:
        if group.stopping or isinstance(error, Stopped):
            return end(group, nested, "stopped", 1, "stopped")
        return end(group, nested, "failed", 1, first_line(error))
    if group.stopping:
        return end(group, nested, "stopped", 1, "stopped")
    return end(group, nested, "succeeded", 0, "every rank ended with exit code 0")


def torch_signals():
    """torch's exception for a handled signal."""
    from torch.distributed.elastic.multiprocessing.api import SignalException

    return SignalException


def too_old(version):
    """A sentence when this torch is older than 2.7, the oldest with what the runner stands on; else None."""
    major, minor = (int(part) for part in version.split("+")[0].split(".")[:2])
    if (major, minor) >= (2, 7):
        return None
    return "torch %s in %s is too old: distui needs 2.7 or newer there" % (version, sys.executable)


def port_problem(endpoint):
    """A sentence when the rendezvous port is taken: torch would silently become a client of the stranger."""
    host, _, port = endpoint.rpartition(":")
    probe = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host.strip("[]"), int(port)))
    except OSError as error:
        return "rendezvous port %s on %s is not free (%s): choose another with --port" % (
            port,
            host,
            error.strerror,
        )
    finally:
        probe.close()
    return None


def first_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" =-")]
    return "%s: %s" % (type(error).__name__, lines[0] if lines else "no message")


def end(group, nested, phase, exit_code, text):
    """Report the end; a nested runner leaves the last word to the command around it."""
    group.settle()
    if not nested:
        group.report("RunEnded", phase=phase, exit_code=exit_code, text=text)
    elif phase == "failed":
        sys.stderr.write("distui: %s\n" % text)
    return exit_code


def plug_in(group, config):
    """Put our rendezvous handler and log layout into a LaunchConfig."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    backend = config.rdzv_backend

    def make(params):
        inner = get_rendezvous_handler(
            RendezvousParameters(
                backend=backend, endpoint=params.endpoint, run_id=params.run_id, min_nodes=params.min_nodes,
                max_nodes=params.max_nodes, local_addr=params.local_addr, **params.config,
            )
        )  # fmt: skip
        return make_handler(group, inner)

    rendezvous_handler_registry.register("distui", make)
    if backend != "static":
        config.rdzv_backend = "distui"
    config.logs_specs = make_logs(group, config.logs_specs)


def make_handler(group, inner):
    """Wrap a RendezvousHandler with the group's restarts and its policy."""
    from torch.distributed.elastic.rendezvous import RendezvousHandler

    class Handler(RendezvousHandler):
        use_agent_store = property(lambda self: inner.use_agent_store)

        def get_backend(self):
            return "distui"

        def next_rendezvous(self):
            before_attempt(group)
            return inner.next_rendezvous()

        def num_nodes_waiting(self):
            waiting = inner.num_nodes_waiting()
            return max(waiting, 1) if group.restart.is_set() else waiting

        def is_closed(self):
            return inner.is_closed()

        def set_closed(self):
            inner.set_closed()

        def get_run_id(self):
            return inner.get_run_id()

        def shutdown(self):
            return inner.shutdown()

    return Handler()


def before_attempt(group):
    """Why is there a next attempt? Asked for: at once. A failure: as the policy says, in its own time."""
    group.cause = "launch" if group.attempt == 0 else "membership"
    if group.attempt and not group.restart.is_set() and group.failed.is_set():
        group.settle()
        verdict = after_failure(group.plan["restart"], group.failures, time.time() - group.began)
        group.failures = verdict.failures
        if not verdict.restart:
            limit = group.plan["restart"]["limit"]
            raise GaveUp("gave up: the restart policy allows %d failures, this was number %d" % (limit, limit + 1))
        group.cause = "failure"
        group.report(
            "RestartDelayed", wait_s=verdict.wait_s, failures=verdict.failures, limit=group.plan["restart"]["limit"]
        )
        group.restart.wait(verdict.wait_s)
    if group.stopping:
        raise Stopped
    if group.restart.is_set():
        group.settle()
        group.cause = "restart"
        group.restart.clear()


def make_logs(group, fallback):
    """A LogsSpecs whose files are never reused; `fallback` is what torchrun's own arguments asked for."""
    from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

    class Logs(LogsSpecs):
        root_log_dir = property(lambda self: group.run_dir)

        def reify(self, envs):
            return LogsDest(**start_attempt(group, envs))

    return Logs()


def start_attempt(group, envs):
    """Fill the environment of each local rank and say where its output goes. `envs`: local rank → variables."""
    diff = group.take_env()
    number, directory = group.next_attempt()
    places, paths = [], {"stdouts": {}, "stderrs": {}, "error_files": {}}
    for local, env in sorted(envs.items()):
        rank = int(env.get("RANK", local))
        stem = os.path.join(directory, "rank-%d" % rank)
        paths["stdouts"][local] = stem + ".out"
        paths["stderrs"][local] = stem + ".err"
        paths["error_files"][local] = stem + ".error.json"
        env.update(rank_env(group, number, local, stem))
        places.append({"rank": rank, "local_rank": local, "node": 0, "gpu": gpu_of(local)})
    world = int(envs[min(envs)].get("WORLD_SIZE", len(envs))) if envs else 0
    group.report(
        "AttemptStarted", attempt=number, cause=group.cause, world_size=world, ranks=places, env_diff=diff,
        failures=group.failures,
    )  # fmt: skip
    group.watch(places, runner.local_rank_of)
    paths.update(tee_stdouts={}, tee_stderrs={})
    return paths


def rank_env(group, attempt, local, stem):
    """Variables that only the start of an attempt can know."""
    env = {
        "TORCHELASTIC_ERROR_FILE": stem + ".error.json",
        "NCCL_DEBUG_FILE": stem + ".nccl",
        "DISTUI_RUNNER_PID": str(os.getpid()),
        "DISTUI_ATTEMPT": str(attempt),
        "DISTUI_RANK_FILES": stem,
    }
    if group.plan["hook"]:
        env["DISTUI_HOOK"] = "%s.r%d" % (os.environ["DISTUI_SOCKETS"], local)
        site = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
        rest = os.environ.get("PYTHONPATH", "")
        env["PYTHONPATH"] = site + (os.pathsep + rest if rest else "")
    return env


def gpu_of(local):
    """The GPU that the launch environment gives to a local rank; None when the plan uses none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if os.environ.get("DISTUI_BACKEND") != "nccl":
        return None
    if visible is None:
        return str(local)
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return names[local] if local < len(names) else None
