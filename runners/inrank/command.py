"""Any launcher, any script: the command runs as it is, and restarts by stop and start."""

import os
import signal
import subprocess
import sys
import time

from . import runner
from .policy import after_failure
from .report import signal_name


def run(group, nested):
    """Run the plan's command until it succeeds, is stopped, or the policy gives up; its exit code."""
    runner.started(group)
    group.cause = "launch"
    group.on_stop = lambda: end_command(group)
    group.on_restart = lambda: end_command(group)
    while True:
        code = one_attempt(group)
        if group.stopping:
            return end(group, "stopped", code, "stopped")
        if group.restart.is_set():
            group.restart.clear()
            group.cause = "restart"
            continue
        if code == 0:
            return end(group, "succeeded", 0, "the command ended with exit code 0")
        if code is None:
            return end(group, "failed", 127, group.problem)
        if not another_attempt(group):
            return end(group, "failed", code, "the command %s" % how(code))


def another_attempt(group):
    """Wait as the policy says; False when it gives up."""
    verdict = after_failure(group.plan["restart"], group.failures, time.time() - group.began)
    group.failures, group.cause = verdict.failures, "failure"
    if verdict.restart:
        group.report(
            "RestartDelayed", wait_s=verdict.wait_s, failures=verdict.failures, limit=group.plan["restart"]["limit"]
        )
        if group.restart.wait(verdict.wait_s):
            group.restart.clear()
            group.cause = "restart"
    return verdict.restart and not group.stopping


def how(code):
    return "was ended by %s" % signal_name(code) if code < 0 else "ended with exit code %d" % code


def one_attempt(group):
    """Spawn the command and wait for it; its exit code, or None when it could not start."""
    diff = group.take_env()
    number, directory = group.next_attempt()
    place = {"rank": 0, "local_rank": 0, "node": 0, "gpu": None}
    group.report(
        "AttemptStarted", attempt=number, cause=group.cause, world_size=1, ranks=[place], env_diff=diff,
        failures=group.failures,
    )  # fmt: skip
    stem = os.path.join(directory, "rank-0")
    with open(stem + ".out", "ab") as out, open(stem + ".err", "ab") as err:
        try:
            process = subprocess.Popen(
                group.plan["argv"], stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                env=command_env(group, number, stem),
            )  # fmt: skip
        except OSError as error:
            group.problem = "cannot start %s: %s" % (group.plan["argv"][0], error.strerror)
            return None
    group.process = process
    follow(group, number, place, process.pid)
    code = process.wait()
    group.settle()
    return code


def follow(group, number, place, pid):
    group._follow(number, place, pid)


def command_env(group, attempt, stem):
    """The marker, the attempt that a nested runner takes over, and a `torchrun` of ours in front."""
    here = os.path.dirname(os.path.abspath(__file__))
    env = dict(os.environ)
    env["DISTUI_ATTEMPT"] = str(attempt)
    env["DISTUI_RUN_DIR"] = group.run_dir
    env["NCCL_DEBUG_FILE"] = stem + ".%p.nccl"
    if group.plan["hook"]:
        env["PATH"] = os.path.join(here, "shim") + os.pathsep + env.get("PATH", os.defpath)
        env["DISTUI_PYTHON"] = sys.executable
    return env


def end_command(group):
    """TERM to the command's whole group; the grace timer does the rest."""
    process = getattr(group, "process", None)
    if process is not None and process.poll() is None:
        group.ending = True
        runner.kill_group(process.pid, signal.SIGTERM)


def end(group, phase, code, text):
    group.settle()
    group.report("RunEnded", phase=phase, exit_code=code, text=text)
    return 0 if phase == "succeeded" else code if code and code > 0 else 1
