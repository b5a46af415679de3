"""What each verb takes. Imports nothing of distui, so that `--help` costs nothing."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from .cloud_arguments import cloud_options, cluster_verbs
from .counts import count
from .diagnose_arguments import bundle_verbs, diagnose_verb, dump_verb
from .host_arguments import elsewhere, host_options

Verbs = Any  # argparse has no public name for what add_subparsers returns


def seconds(text: str) -> float:
    """A duration of an option. Raises ArgumentTypeError."""
    refusal = "is no number of seconds: write 0 or more, as in 30 or 2.5"
    return _real(text, lambda found: 0 <= found < 1e9, refusal)


def gigabytes(text: str) -> float:
    """A size of an option, in GB. Raises ArgumentTypeError."""
    return _real(text, lambda found: 0 < found < 1e6, "is no number of GB: write one above 0, as in 80")


def _real(text: str, fits: Callable[[float], bool], refusal: str) -> float:
    """A number that fits; nan, which what is no number becomes, fits nothing. Raises ArgumentTypeError."""
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not fits(found):
        raise argparse.ArgumentTypeError(f"{text!r} {refusal}")
    return found


def add_verbs(verbs: Verbs) -> None:
    """Every verb, in the order in which a run meets them."""
    _launch(verbs, "launch", "start a run and open the cockpit on it", "launch:launch")
    _launch(verbs, "plan", "print what launch would do, and do nothing", "launch:plan")
    _launch(verbs, "lint", "what is wrong with a launch, or with files, before it costs", "lint:lint")
    _exec(verbs)
    _looking(verbs)
    _changing(verbs)
    cluster_verbs(verbs, _run)
    _presets(verbs)
    _advise(verbs)
    _doctor(verbs)
    diagnose_verb(verbs)
    bundle_verbs(verbs)
    demo = verbs.add_parser("demo", help="train the shipped example on 2 ranks and open the cockpit on it")
    demo.add_argument("--preset", default="ddp", help="preset to train under (default: ddp)")
    demo.add_argument("--steps", type=count, default=2000, help="optimizer steps (default: 2000)")
    demo.add_argument("--nproc-per-node", default="2", metavar="N", help="ranks (default: 2)")
    demo.add_argument("--detach", action="store_true", help="start it and return")
    demo.set_defaults(verb="launch:demo")


def _start_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--name", metavar="NAME", help="name of the run (default: that of the script)")
    verb.add_argument(
        "--env", action="append", default=[], metavar="K=V", help="variable for every rank; repeatable"
    )
    verb.add_argument(
        "--nccl", action="append", default=[], metavar="K=V", help="NCCL variable, NCCL_ may be left out"
    )
    verb.add_argument(
        "--nccl-preset", action="append", default=[], metavar="NAME",
        help="settings of NCCL by name (`distui presets nccl` lists them); repeatable",
    )  # fmt: skip
    verb.add_argument(
        "--env-on", action="append", default=[], metavar="HOSTS:K=V",
        help="variable for the nodes whose host name fits, as in gpu0?:NCCL_SOCKET_IFNAME==eth1; repeatable",
    )  # fmt: skip
    verb.add_argument("--no-hook", action="store_true", help="inject nothing into the ranks")
    verb.add_argument("--grace", type=seconds, metavar="SECONDS", help="between SIGTERM and SIGKILL")
    verb.add_argument(
        "--restarts", type=count, metavar="N", help="failures after which the run is given up"
    )
    verb.add_argument("--detach", action="store_true", help="start it and return")
    verb.add_argument("--dry-run", action="store_true", help="print the plan and do nothing")
    verb.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _launch(verbs: Verbs, name: str, summary: str, function: str) -> None:
    files = " | FILE… | -- COMMAND…" * (name == "lint")
    usage = f"distui {name} PRESET [options] -- SCRIPT [ARGS…]{files}"
    verb = verbs.add_parser(name, help=summary, usage=usage, description=summary)
    many = "*" if files else "?"
    verb.add_argument("preset", nargs=many, metavar="PRESET", help="`distui presets` lists them")
    verb.add_argument("--nnodes", "--num-nodes", metavar="N|MIN:MAX", help="nodes (this machine: 1)")
    verb.add_argument("--nproc-per-node", metavar="N|gpu|cpu|auto", help="ranks on each node")
    verb.add_argument(
        "--on", default="local", metavar="PLACE", help="where: local, sky, or one of SkyPilot's places"
    )
    verb.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="change a preset's field"
    )
    verb.add_argument("--python", metavar="PATH", help="interpreter of the training environment")
    verb.add_argument("--port", type=int, metavar="PORT", help="rendezvous port (default: a free one)")
    verb.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as for `python -m`")
    verb.add_argument(
        "--no-python", action="store_true", help="SCRIPT is a program that is executed itself"
    )
    _start_options(verb)
    host_options(verb)
    cloud_options(verb)
    verb.set_defaults(verb=function, takes_rest=True)


def _exec(verbs: Verbs) -> None:
    summary = "run any command, supervised as it is"
    verb = verbs.add_parser(
        "exec", help=summary, usage="distui exec [options] -- COMMAND…", description=summary
    )
    _start_options(verb)
    verb.set_defaults(verb="launch:execute", takes_rest=True)


def _run(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("run", nargs="?", metavar="RUN")


def _json(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--json", action="store_true", help="JSON on stdout and nothing else")


def _ranks(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--rank", type=count, action="append", default=[], metavar="N", help="only this rank; repeatable"
    )


def _looking(verbs: Verbs) -> None:
    verb = verbs.add_parser("watch", help="jobs that distui did not start, read-only")
    verb.add_argument("pid", nargs="?", type=int, metavar="PID", help="any process of the job")
    _json(verb)
    verb.set_defaults(verb="watch:watch")
    verb = verbs.add_parser("ls", help="the runs there are")
    elsewhere(verb, many=True)
    _json(verb)
    verb.set_defaults(verb="runs:ls")
    verb = verbs.add_parser("attach", help="open the cockpit on a run")
    _run(verb)
    verb.add_argument("--readonly", action="store_true", default=argparse.SUPPRESS, help="look only")
    elsewhere(verb)
    verb.set_defaults(verb="cockpit:attach")
    verb = verbs.add_parser("status", help="everything that is true of a run now")
    _run(verb)
    _json(verb)
    verb.set_defaults(verb="bundled:status")
    verb = verbs.add_parser("events", help="the journal of a run")
    _run(verb)
    verb.add_argument("-f", "--follow", action="store_true", help="go on with what comes")
    _json(verb)
    verb.set_defaults(verb="bundled:events")
    verb = verbs.add_parser("wait", help="wait for a run; returns its outcome")
    _run(verb)
    verb.add_argument(
        "--until", choices=("running", "healthy", "done"), default="done", help="(default: done)"
    )
    verb.add_argument("--timeout", type=seconds, metavar="SECONDS", help="give up then, with exit code 1")
    verb.set_defaults(verb="runs:wait")
    _logs(verbs)


def _logs(verbs: Verbs) -> None:
    verb = verbs.add_parser("logs", help="what the ranks wrote")
    _run(verb)
    _ranks(verb)
    verb.add_argument("--node", type=count, metavar="N", help="only this node")
    verb.add_argument(
        "--stream", action="append", choices=("out", "err", "nccl", "log"), default=[],
        help="repeatable (default: out and err; log: of runner and agent)",
    )  # fmt: skip
    verb.add_argument("-f", "--follow", action="store_true", help="go on with what comes")
    verb.add_argument("--grep", default="", metavar="RE", help="only lines that match")
    verb.add_argument("--attempt", type=count, metavar="N", help="(default: the newest)")
    verb.set_defaults(verb="bundled:logs")


def _changing(verbs: Verbs) -> None:
    verb = verbs.add_parser("nccl", help="change NCCL_DEBUG of a running job")
    _run(verb)
    verb.add_argument("level", metavar="LEVEL", help="VERSION, WARN, INFO or TRACE")
    verb.add_argument("--subsys", default="", metavar="A,B", help="NCCL_DEBUG_SUBSYS, e.g. COLL,NET")
    verb.add_argument(
        "--for", dest="seconds", type=seconds, metavar="SECONDS", help="then back to what it was"
    )
    verb.add_argument("--restart", action="store_true", help="by a restart of the group instead of live")
    _reachable(verb)
    _ranks(verb)
    _json(verb)
    verb.set_defaults(verb="control:nccl")
    verb = verbs.add_parser("restart", help="restart the worker group in place")
    _run(verb)
    verb.add_argument(
        "--env", action="append", default=[], metavar="K=V", help="change a variable; repeatable"
    )
    verb.add_argument(
        "--unset", action="append", default=[], metavar="K", help="remove a variable; repeatable"
    )
    _reachable(verb)
    _sure(verb)
    verb.set_defaults(verb="control:restart")
    verb = verbs.add_parser("signal", help="send a signal to ranks")
    _run(verb)
    verb.add_argument("signal", metavar="SIG", help="e.g. USR1")
    _ranks(verb)
    _json(verb)
    verb.set_defaults(verb="control:send_signal")
    dump_verb(verbs)
    verb = verbs.add_parser("stop", help="end a run: SIGTERM, grace, SIGKILL, sweep")
    _run(verb)
    verb.add_argument("--grace", type=seconds, metavar="SECONDS", help="(default: the preset's)")
    _sure(verb)
    verb.set_defaults(verb="control:stop")


def _reachable(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--reachable",
        action="store_true",
        help="restart without nodes that do not answer, where the run is elastic",
    )


def _sure(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--yes", action="store_true", help="do not ask")
    _json(verb)


def _presets(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "presets", help="the presets: list, show NAME, new NAME; nccl: settings of NCCL by name",
        usage="distui presets [--json] | show NAME [--set F=VALUE] | new NAME [--base NAME | --from FILE|RUN] | nccl",
    )  # fmt: skip
    verb.add_argument("action", nargs="?", choices=("show", "new", "nccl"))
    verb.add_argument("name", nargs="?", metavar="NAME")
    verb.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="as for launch")
    verb.add_argument("--base", default="ddp", metavar="NAME", help="what a new preset starts from")
    verb.add_argument("--from", dest="source", metavar="FILE|RUN",
        help="what a new preset says: accelerate's YAML, DeepSpeed's JSON, a SkyPilot task, or the plan of a run",
    )  # fmt: skip
    _json(verb)
    verb.set_defaults(verb="presets:presets")


def _advise(verbs: Verbs) -> None:
    verb = verbs.add_parser("advise", help="which strategy fits into the memory of which GPUs")
    model, add = verb.add_mutually_exclusive_group(required=True), verb.add_argument
    model.add_argument("--params", metavar="N", help="the model's parameters: 7B, 350M")
    model.add_argument("--script", metavar="PATH[:NAME]", help="count what this class or function builds")
    add("--model-args", default="", metavar="K=V,…", help="arguments of --script's class or function")
    add("--python", metavar="PATH", help="interpreter of the training environment, for --script")
    add("--gpus", required=True, metavar="COUNTxNAME", help="of one node, as in 8xA100-80GB")
    add("--nodes", type=count, default=1, metavar="N", help="(default: 1)")
    add("--gpu-memory", type=gigabytes, metavar="GB", help="of each GPU, for one that is not known here")
    add("--host-memory", type=gigabytes, metavar="GB", help="of each node (default: enough)")
    add("--layers", type=count, metavar="N", help="(default: as usual for so many parameters)")
    add("--hidden", type=count, metavar="N", help="hidden size (default: as usual)")
    add("--vocab", type=count, metavar="N", help="words (default: 32000)")
    add("--seq", type=count, default=2048, metavar="N", help="positions of a sequence (default: 2048)")
    add("--micro-batch", type=count, default=1, metavar="N", help="sequences a GPU (default: 1)")
    add("--recompute", action="store_true", help="activation checkpointing of every layer")
    add(
        "--format", choices=("bf16", "mixed", "fp32"), default="bf16",
        help="bytes a parameter of weights, gradients, Adam: 2+2+8, 2+2+12, 4+4+8 (default: bf16)",
    )  # fmt: skip
    _json(verb)
    verb.set_defaults(verb="advise:advise")


def _doctor(verbs: Verbs) -> None:
    verb = verbs.add_parser("doctor", help="what stands in the way of a run, on this node or on --hosts")
    _run(verb)
    host_options(verb)
    verb.add_argument("--python", metavar="PATH", help="interpreter of the training environment")
    verb.add_argument("--port", type=int, metavar="PORT", help="of the rendezvous, on the first node")
    verb.add_argument("--no-pairs", dest="pairs", action="store_false", help="no all-reduce between pairs")
    verb.add_argument(
        "--size", type=count, default=16, metavar="MiB", help="of an all-reduce (default: 16)"
    )
    _json(verb)
    verb.set_defaults(verb="doctor:doctor")
