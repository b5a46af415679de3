"""What each verb takes, and what it may do to runs. Imports nothing heavy, so that `--help` costs nothing."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ..runners.launch.options import ABOUT, HOSTS, NODES, RUN, LaunchOption, option
from ..runners.launch.options import options as launch_options

# What each verb may do to runs; a verb that is in none of these sets is refused by the tests.
READS = frozenset(
    ["attach", "diagnose", "dump", "events", "export", "logs", "ls", "replay", "status", "wait", "watch"]
)
"""Start, end, signal and restart nothing, whatever became of the run: `dump` asks ranks that answer by themselves."""

CHANGES = frozenset(["autostop", "down", "nccl", "restart", "signal", "stop"])
"""Change a run that is there."""

STARTS = frozenset(["demo", "exec", "launch", "relaunch", "rerun"])
"""Start a new run."""

APART = frozenset(["advise", "candidates", "doctor", "lint", "plan", "presets", "trust"])
"""Are about no run, or leave it alone."""

Verbs = Any  # argparse has no public name for what add_subparsers returns


def seconds(text: str) -> float:
    """A duration of an option. Raises ArgumentTypeError."""
    refusal = "is no number of seconds: write 0 or more, as in 30 or 2.5"
    return _real(text, lambda number: 0 <= number < 1e9, refusal)


def gigabytes(text: str) -> float:
    """A size of an option, in GB. Raises ArgumentTypeError."""
    return _real(text, lambda number: 0 < number < 1e6, "is no number of GB: write one above 0, as in 80")


def _real(text: str, fits: Callable[[float], bool], refusal: str) -> float:
    """A number that fits; nan, which what is no number becomes, fits nothing. Raises ArgumentTypeError."""
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not fits(number):
        raise argparse.ArgumentTypeError(f"{text!r} {refusal}")
    return number


def count(text: str) -> int:
    """A number of things of an option. Raises ArgumentTypeError."""
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number: write 0 or more, as in 3")
    return int(text)


def minutes(text: str) -> int | None:
    """Minutes of an option, None for "off". Raises ArgumentTypeError."""
    if text == "off":
        return None
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) < 10**6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes: write 1 or more, or off")
    return int(text)


def add_verbs(verbs: Verbs) -> None:
    """Every verb, in the order in which a run meets them."""
    _launch(verbs, "launch", "start a run and open the cockpit on it", "launch:launch")
    _launch(verbs, "plan", "print what launch would do, and do nothing", "launch:plan")
    _launch(verbs, "lint", "check a launch or configuration files before you pay for GPUs", "lint:lint")
    _exec(verbs)
    _looking(verbs)
    _changing(verbs)
    cluster_verbs(verbs, _run)
    _presets(verbs)
    _trust(verbs)
    _advise(verbs)
    _doctor(verbs)
    diagnose_verb(verbs)
    bundle_verbs(verbs)
    demo = verbs.add_parser("demo", help="train the shipped example on 2 ranks and open the cockpit on it")
    demo.add_argument("--preset", help="preset to train under (default: ddp)")
    demo.add_argument("--python", metavar="PATH", help="interpreter of an environment that has torch")
    demo.add_argument("--steps", type=count, default=2000, help="optimizer steps (default: 2000)")
    demo.add_argument("--nproc-per-node", default="2", metavar="N", help="ranks (default: 2)")
    _add(demo, option("--detach"))
    demo.set_defaults(verb="launch:demo")


PARSERS: dict[str, Callable[[str], Any]] = {
    "": str, "count": count, "seconds": seconds, "minutes": minutes, "port": int,
}  # fmt: skip
"""How the value of an option is read, by the word of the table of options."""


def _add(options: argparse._ActionsContainer, option: LaunchOption) -> None:
    """An option of the table."""
    if not option.takes:
        options.add_argument(*option.flags, action="store_true", help=option.summary)
    elif option.repeat:
        options.add_argument(
            *option.flags, action="append", default=[], metavar=option.takes, help=option.summary
        )
    else:
        options.add_argument(
            *option.flags, type=PARSERS[option.parse], default=option.default, metavar=option.takes, help=option.summary
        )  # fmt: skip


def _add_all(verb: argparse.ArgumentParser, name: str, *headings: str) -> None:
    """The options of the table that a verb has, heading by heading."""
    for heading in headings:
        group = verb.add_argument_group(heading, ABOUT[heading]) if heading else verb
        for each in launch_options(name, heading):
            _add(group, each)


def _launch(verbs: Verbs, name: str, summary: str, function: str) -> None:
    files = " | FILE… | -- COMMAND…" * (name == "lint")
    usage = f"distui {name} PRESET [options] -- SCRIPT [ARGS…]{files}"
    verb = verbs.add_parser(name, help=summary, usage=usage, description=summary)
    many = "*" if files else "?"
    verb.add_argument("preset", nargs=many, metavar="PRESET", help="`distui presets` lists them")
    _add_all(verb, name, RUN, HOSTS, NODES)
    verb.set_defaults(detach=False, dry_run=False)
    verb.set_defaults(verb=function, takes_rest=True)


def _exec(verbs: Verbs) -> None:
    summary = "run any command, supervised as it is"
    verb = verbs.add_parser(
        "exec", help=summary, usage="distui exec [options] -- COMMAND…", description=summary
    )
    _add_all(verb, "exec", RUN)
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
    verb.set_defaults(verb="status:watch")
    verb = verbs.add_parser("ls", help="the runs there are")
    elsewhere(verb, many=True)
    _json(verb)
    verb.set_defaults(verb="runs:ls")
    verb = verbs.add_parser("attach", help="open the cockpit on a run")
    _run(verb)
    verb.add_argument("--readonly", action="store_true", default=argparse.SUPPRESS, help="look only")
    elsewhere(verb)
    verb.set_defaults(verb="runs:attach")
    verb = verbs.add_parser("status", help="show the current state of a run")
    _run(verb)
    _json(verb)
    verb.set_defaults(verb="status:status")
    verb = verbs.add_parser("events", help="the journal of a run")
    _run(verb)
    verb.add_argument("-f", "--follow", action="store_true", help="keep following new output")
    _json(verb)
    verb.set_defaults(verb="runs:events")
    verb = verbs.add_parser("wait", help="wait for a run; returns its outcome")
    _run(verb)
    verb.add_argument(
        "--until", choices=("running", "healthy", "done"), default="done", help="(default: done)"
    )
    verb.add_argument(
        "--timeout", type=seconds, metavar="SECONDS", help="give up after SECONDS (exit code 124)"
    )
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
    verb.add_argument("-f", "--follow", action="store_true", help="keep following new output")
    verb.add_argument("--grep", default="", metavar="RE", help="only lines that match")
    verb.add_argument("--attempt", type=count, metavar="N", help="(default: the newest)")
    verb.set_defaults(verb="logs:logs")


def _changing(verbs: Verbs) -> None:
    verb = verbs.add_parser("nccl", help="change NCCL_DEBUG of a running job")
    _run(verb)
    verb.add_argument("level", metavar="LEVEL", help="VERSION, WARN, INFO or TRACE")
    verb.add_argument("--subsys", default="", metavar="A,B", help="NCCL_DEBUG_SUBSYS, e.g. COLL,NET")
    verb.add_argument("--for", dest="seconds", type=seconds, metavar="SECONDS", help="revert after SECONDS")
    verb.add_argument(
        "--restart", action="store_true", help="apply by restarting the worker group instead of live"
    )
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
        "--env-from-shell", dest="from_shell", action="append", default=[], metavar="K",
        help="give it the value that this shell has, which no argument shows; repeatable",
    )  # fmt: skip
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
    _sure(verb)
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


def _trust(verbs: Verbs) -> None:
    summary = "let a configuration file count that somebody else can write, as it is now"
    verb = verbs.add_parser(
        "trust", help=summary, usage="distui trust [PATH] | --list | --remove [PATH]", description=summary
    )
    verb.add_argument("path", nargs="?", metavar="PATH", help="(default: the nearest distui.toml)")
    ways = verb.add_mutually_exclusive_group()
    ways.add_argument("--list", action="store_true", help="what is trusted")
    ways.add_argument("--remove", action="store_true", help="trust it no longer")
    _json(verb)
    verb.set_defaults(verb="presets:trust")


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
    _add_all(verb, "doctor", HOSTS)
    verb.add_argument("--python", metavar="PATH", help="interpreter of the training environment")
    verb.add_argument("--port", type=int, metavar="PORT", help="rendezvous port on the first node")
    verb.add_argument("--no-pairs", dest="pairs", action="store_false", help="no all-reduce between pairs")
    verb.add_argument(
        "--size", type=count, default=16, metavar="MiB", help="all-reduce size in MiB (default: 16)"
    )
    _json(verb)
    verb.set_defaults(verb="doctor:doctor")


def elsewhere(verb: argparse.ArgumentParser, many: bool = False) -> None:
    """`--host` of the verbs that look at the runs of another machine."""
    if many:
        verb.add_argument(
            "--host", action="append", metavar="NAME", help="that these keep, by ssh; repeatable"
        )
    else:
        verb.add_argument("--host", metavar="NAME", help="that this one keeps: its cockpit, through ssh")
    _add(verb, option("--ssh-config"))


def names_hosts(options: argparse.Namespace) -> bool:
    """Whether the user named hosts."""
    return options.hosts is not None or options.hostfile is not None


def cloud_words(options: argparse.Namespace) -> list[str]:
    """Which options about nodes of SkyPilot's were given, as they are written."""
    return [each.flags[0] for each in launch_options("launch", NODES) if getattr(options, each.name)]


def cluster_verbs(verbs: Verbs, run: Callable[[argparse.ArgumentParser], None]) -> None:
    """candidates, down, autostop, relaunch. `run` adds the RUN that a verb is about."""
    verb = verbs.add_parser("candidates", help="which nodes SkyPilot would take, and what they cost")
    verb.add_argument(
        "--on",
        default="sky",
        metavar="INFRA",
        help="infrastructure to search (default: all that SkyPilot has enabled)",
    )
    verb.add_argument("--nnodes", "--num-nodes", metavar="N", help="nodes (default: 1)")
    _add_all(verb, "candidates", NODES)
    verb.add_argument("--json", action="store_true", help="JSON on stdout and nothing else")
    verb.set_defaults(verb="launch:candidates")
    verb = verbs.add_parser("down", help="take the cluster of a run down, with everything on it")
    run(verb)
    verb.add_argument("--yes", metavar="CLUSTER", help="do not ask: the cluster's name")
    verb.add_argument("--json", action="store_true", help="JSON on stdout and nothing else")
    verb.set_defaults(verb="launch:down")
    verb = verbs.add_parser("autostop", help="when the cluster of a run goes down by itself")
    verb.add_argument("run", metavar="RUN")
    verb.add_argument("minutes", type=minutes, metavar="MINUTES|off", help="without a job")
    verb.add_argument("--json", action="store_true", help="JSON on stdout and nothing else")
    verb.set_defaults(verb="launch:autostop")
    verb = verbs.add_parser(
        "relaunch",
        aliases=["rerun"],
        help="the same launch again, as a new run; on its cluster where that is up",
    )
    run(verb)
    verb.add_argument("--name", metavar="NAME", help="name of the new run (default: the same)")
    for flag in ("--detach", "--dry-run", "--json"):
        _add(verb, option(flag))
    verb.set_defaults(verb="launch:relaunch")


def diagnose_verb(verbs: Any) -> None:
    """`distui diagnose FILE… | RUN`."""
    summary = "find the root cause in NCCL and PyTorch logs"
    verb = verbs.add_parser(
        "diagnose",
        help=summary,
        usage="distui diagnose [FILE… | BUNDLE | RUN] [--json]",
        description=summary,
    )
    verb.add_argument(
        "names", nargs="*", metavar="FILE|RUN",
        help="log files (also .gz; - is standard input), a bundle of `distui export`, or a run",
    )  # fmt: skip
    verb.add_argument("--json", action="store_true", help="JSON on stdout and nothing else")
    verb.set_defaults(verb="diagnose:diagnose")


def dump_verb(verbs: Any) -> None:
    """`distui dump RUN stacks|flight|memory`."""
    summary = "what the ranks are doing: stacks, flight recorder, memory"
    verb = verbs.add_parser("dump", help=summary, description=summary)
    verb.add_argument("run", nargs="?", metavar="RUN")
    verb.add_argument("what", choices=("stacks", "flight", "memory"))
    verb.add_argument(
        "--rank", type=count, action="append", default=[], metavar="N", help="only this rank; repeatable"
    )
    verb.add_argument("--raw", action="store_true", help="as each rank answered, not merged")
    verb.add_argument("--out", metavar="DIR", help="write each rank's answer into a file there, too")
    verb.add_argument(
        "--record", action="store_true", help="memory: have torch record allocations for later snapshots"
    )
    verb.add_argument("--json", action="store_true", help="JSON on stdout and nothing else")
    verb.set_defaults(verb="diagnose:dump")


def bundle_verbs(verbs: Any) -> None:
    """`distui export RUN FILE`, `distui replay FILE|RUN`."""
    summary = "a run as one file that another person opens with `distui replay`"
    verb = verbs.add_parser("export", help=summary, description=summary)
    verb.add_argument("run", metavar="RUN")
    verb.add_argument("file", metavar="FILE", help="output file, e.g. run.tar.gz")
    verb.add_argument(
        "--logs",
        type=count,
        default=4,
        metavar="MiB",
        help="of the end of each log (default: 4; the first 256 KiB too)",
    )
    verb.add_argument("--force", action="store_true", help="replace FILE where it is there")
    verb.add_argument("--json", action="store_true", help="JSON on stdout and nothing else")
    verb.set_defaults(verb="diagnose:export")
    verb = verbs.add_parser("replay", help="open the record of a run that has ended, or a bundle")
    verb.add_argument("run", nargs="?", metavar="FILE|RUN", help="a bundle of `distui export`, or a run")
    verb.add_argument("--readonly", action="store_true", default=argparse.SUPPRESS, help="look only")
    verb.set_defaults(verb="runs:replay")
