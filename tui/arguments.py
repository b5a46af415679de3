"""What each verb takes, and what it may do to runs. Imports nothing heavy, so that `--help` costs nothing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, MutableMapping
from typing import Any

from ..runners.launch.options import ABOUT, HOSTS, NODES, RUN, LaunchOption, option
from ..runners.launch.options import options as launch_options
from .option_values import cap, count, days, gigabytes, minutes, rank_list, seconds

# What each verb may do to runs; a verb that is in none of these sets is refused by the tests.
READS = frozenset((
    "attach", "diagnose", "diff", "dump", "events", "export", "logs", "ls", "metrics", "replay", "status", "wait",
    "watch",
))  # fmt: skip
"""Start, end, signal and restart nothing, in whatever state the run is: `dump` asks ranks that answer by themselves."""

CHANGES = frozenset(
    ["autostop", "down", "nccl", "note", "profile", "prune", "restart", "rm", "signal", "stop", "tag"]
)
"""Change a run that is there."""

STARTS = frozenset(["demo", "exec", "launch", "relaunch", "rerun"])
"""Start a new run."""

APART = frozenset(
    ["advise", "candidates", "completion", "doctor", "lint", "man", "mcp", "notify", "plan", "presets", "settings",
     "trust"]
)  # fmt: skip
"""Are about no run, or leave it alone."""

Verbs = Any  # argparse has no public name for what add_subparsers returns


def add_verbs(verbs: Verbs) -> None:
    """Every verb, in the order in which a run meets them."""
    _launch(verbs, "launch", "start a run and open the cockpit on it", "launch:launch")
    _launch(verbs, "plan", "print what launch would do, without doing it", "launch:plan")
    _launch(verbs, "lint", "check a launch or configuration files before you pay for GPUs", "lint:lint")
    usage = "distui exec [options] -- COMMAND…"
    verb = _verb(verbs, "exec", "launch:execute", help="run any command under supervision", usage=usage)
    _add_all(verb, "exec", RUN)
    verb.set_defaults(takes_rest=True)
    _reading(verbs)
    _changing(verbs)
    _removing(verbs)
    _marking(verbs)
    _clusters(verbs)
    _presets(verbs)
    _advise(verbs)
    _doctor(verbs)
    _bundles(verbs)
    _notices(verbs)
    _mcp(verbs)
    verb = _verb(verbs, "demo", "demo:demo", help="train the shipped example and open the cockpit on it")
    verb.add_argument("--preset", help="preset to train under (default: ddp)")
    verb.add_argument("--python", metavar="PATH", help="interpreter of an environment that has torch")
    verb.add_argument("--steps", type=count, default=2000, help="optimizer steps (default: 2000)")
    verb.add_argument("--nproc-per-node", default="2", metavar="N", help="ranks (default: 2)")
    verb.add_argument(
        "--hang", action="store_true", help="let the last rank hang after 100 steps, to see it found"
    )
    for flag in ("--detach", "--quiet", "--json"):
        _add(verb, option(flag))
    _of_distui(verbs)


def _of_distui(verbs: Verbs) -> None:
    verb = _verb(
        verbs,
        "settings",
        "show_settings:settings",
        help="show the settings, and where each value comes from",
    )
    verb.add_argument(
        "--example", action="store_true", help="print a settings file with every key as a comment"
    )
    _json(verb)
    verb = _verb(verbs, "man", "man:man", help="show the man page of distui or of a verb")
    verb.add_argument("name", nargs="?", metavar="VERB")
    verb.add_argument("--dir", metavar="DIR", help="write all pages into DIR, as ~/.local/share/man/man1")
    verb = _verb(verbs, "completion", "completion:script", help="print the completion script of a shell")
    verb.add_argument("shell", nargs="?", choices=("bash", "zsh", "fish"), help="(default: that of $SHELL)")


def _verb(verbs: Verbs, name: str, function: str, *, help: str, **about: Any) -> argparse.ArgumentParser:
    """A verb that "module:function" of tui/verbs/ carries out."""
    verb: argparse.ArgumentParser = verbs.add_parser(
        name, help=help, description=help[0].upper() + help[1:], **about
    )
    verb.set_defaults(verb=function)
    return verb


PARSERS: dict[str, Callable[[str], Any]] = {
    "cap": cap, "": str, "count": count, "seconds": seconds, "minutes": minutes, "port": int,
}  # fmt: skip
"""How the value of an option is read, by the word of the table of options."""


def _add(options: argparse._ActionsContainer, option: LaunchOption) -> None:
    """An option of the table."""
    about: dict[str, Any] = {"action": "store_true"}
    if option.takes:
        about = {"metavar": option.takes, "type": PARSERS[option.parse], "default": option.default}
        about |= {"action": "append", "default": []} if option.repeat else {}
    options.add_argument(*option.flags, help=option.summary, **about)


def _add_all(verb: argparse.ArgumentParser, name: str, *headings: str) -> None:
    """The options of the table that a verb has, heading by heading."""
    for heading in headings:
        group = verb.add_argument_group(heading, ABOUT[heading]) if heading else verb
        for each in launch_options(name, heading):
            _add(group, each)


def _launch(verbs: Verbs, name: str, summary: str, function: str) -> None:
    files = " | FILE… | -- COMMAND…" * (name == "lint")
    usage = f"distui {name} PRESET [options] -- SCRIPT [ARGS…]{files}"
    verb = _verb(verbs, name, function, help=summary, usage=usage)
    many = "*" if files else "?"
    verb.add_argument("preset", nargs=many, metavar="PRESET", help="`distui presets` lists them")
    _add_all(verb, name, RUN, HOSTS, NODES)
    verb.set_defaults(detach=False, dry_run=False, takes_rest=True)


def _run(verb: argparse.ArgumentParser, default: str = "the only live run, else the newest") -> None:
    verb.add_argument(
        "run", nargs="?", metavar="RUN", help=f"name, id or unique prefix (default: {default})"
    )


def _json(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--json", action="store_true", help="print JSON on stdout and nothing else")


def _ranks(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "-r",
        "--rank",
        type=count,
        action="append",
        default=[],
        metavar="N",
        help="only this rank; repeatable",
    )


def _follow(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("-f", "--follow", action="store_true", help="keep following new output")


def _readonly(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--readonly",
        action="store_true",
        default=argparse.SUPPRESS,
        help="allow nothing that changes a run",
    )


def _reading(verbs: Verbs) -> None:
    verb = _verb(verbs, "watch", "status:watch", help="show jobs that distui did not start, read-only")
    verb.add_argument("pid", nargs="?", type=int, metavar="PID", help="any process of the job")
    _json(verb)
    _listing(verbs)
    verb = _verb(verbs, "attach", "runs:attach", help="open the cockpit on a run")
    _run(verb)
    _readonly(verb)
    verb.add_argument("--host", metavar="NAME", help="attach to a run on this host, via ssh")
    verb.add_argument(
        "--compare",
        metavar="RUN",
        help="open it with another run, an attempt (RUN@2, @2) or a bundle over it",
    )
    _add(verb, option("--ssh-config"))
    verb = _verb(verbs, "status", "status:status", help="show the current state of a run")
    _run(verb)
    verb.add_argument(
        "-w",
        "--watch",
        action="store_true",
        help="again every 2 s until the run has ended; JSON: an object a line",
    )
    _json(verb)
    verb = _verb(verbs, "events", "runs:events", help="print the journal of a run")
    _run(verb)
    _follow(verb)
    _json(verb)
    verb = _verb(verbs, "wait", "runs:wait", help="wait for a run and exit with its outcome")
    _run(verb)
    verb.add_argument(
        "--until", choices=("running", "healthy", "done"), default="done", help="(default: done)"
    )
    verb.add_argument(
        "--timeout", type=seconds, metavar="SECONDS", help="give up after SECONDS (exit code 124)"
    )
    _json(verb)
    _logs(verbs)


def _listing(verbs: Verbs) -> None:
    verb = _verb(verbs, "ls", "listing:ls", help="list runs")
    verb.add_argument(
        "filter",
        nargs="*",
        metavar="FILTER",
        help="only runs that fit all: state:failed preset:fsdp2 'age<2d'",
    )
    verb.set_defaults(many="filter")
    verb.add_argument("--sort", metavar="COLUMN", help="order by a column (default: the newest first)")
    verb.add_argument("--reverse", action="store_true", help="the other way round")
    verb.add_argument("--columns", metavar="A,B,…", help="print these columns")
    verb.add_argument(
        "-w", "--watch", action="store_true", help="print the list again and again, until Ctrl-C"
    )
    verb.add_argument(
        "--every", type=seconds, metavar="SECONDS", help="with --watch: how often (default: 2)"
    )
    verb.add_argument(
        "--host", action="append", metavar="NAME", help="list the runs on this host, via ssh; repeatable"
    )
    _add(verb, option("--ssh-config"))
    _json(verb)


def _logs(verbs: Verbs) -> None:
    verb = _verb(verbs, "logs", "logs:logs", help="print the logs of the ranks")
    _run(verb)
    _ranks(verb)
    verb.add_argument("--node", type=count, metavar="N", help="only this node")
    verb.add_argument(
        "--stream", action="append", choices=("out", "err", "nccl", "log"), default=[],
        help="repeatable (default: out and err; log: of runner and agent)",
    )  # fmt: skip
    _follow(verb)
    verb.add_argument("-n", "--tail", type=count, metavar="N", help="only the last N lines")
    verb.add_argument(
        "--since", metavar="TIME", help="only lines since 10m ago (s, h, d), or since 10:06:29"
    )
    verb.add_argument("-t", "--timestamps", action="store_true", help="print the time of each line")
    _json(verb)
    verb.add_argument("--grep", default="", metavar="RE", help="only lines that match")
    verb.add_argument("--attempt", type=count, metavar="N", help="(default: the newest)")
    _metrics(verbs)
    _diff(verbs)


def _diff(verbs: Verbs) -> None:
    verb = _verb(
        verbs, "diff", "diff:diff", help="compare two runs, attempts or bundles: what differs, and by how much",
        usage="distui diff A B [--all] [--json] [--exit-code]",
    )  # fmt: skip
    about = "RUN, RUN@ATTEMPT, HOST:RUN or the file of a bundle"
    verb.add_argument("a", metavar="A", help=about)
    verb.add_argument("b", metavar="B", nargs="?", help="the same; without it, the record of A is printed")
    verb.add_argument(
        "--all", action="store_true", help="also what is the same, and variables of the terminal"
    )
    verb.add_argument("--exit-code", action="store_true", help="exit with 1 if something differs")
    _add(verb, option("--ssh-config"))
    _json(verb)


def _metrics(verbs: Verbs) -> None:
    verb = _verb(verbs, "metrics", "metrics:metrics", help="print metrics of a run over time")
    _run(verb)
    verb.add_argument(
        "metric", nargs="*", metavar="METRIC", help="gpu.util, rank.step_s, train, … (default: all)"
    )
    verb.add_argument("--list", action="store_true", help="list the metrics; of RUN, those that it has")
    verb.add_argument(
        "--last", metavar="TIME", help="only this long before now, or before the run's end: 10m, 2h"
    )
    verb.add_argument("--since", metavar="TIME", help="10m (ago), 12:40, 2026-01-31T12:40 or unix seconds")
    verb.add_argument("--until", metavar="TIME", help="the same (default: now)")
    _ranks(verb)
    verb.add_argument(
        "--gpu", type=count, action="append", default=[], metavar="N", help="only this GPU; repeatable"
    )
    verb.add_argument(
        "--fold", action="store_true", help="one row a metric, of all ranks and GPUs together"
    )
    _json(verb)


def _changing(verbs: Verbs) -> None:
    verb = _verb(verbs, "nccl", "control:nccl", help="change NCCL_DEBUG of a running job")
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
    verb = _verb(verbs, "restart", "control:restart", help="restart the worker group in place")
    _run(verb)
    verb.add_argument(
        "--env", action="append", default=[], metavar="K=V", help="change a variable; repeatable"
    )
    verb.add_argument(
        "--env-from-shell", dest="from_shell", action="append", default=[], metavar="K",
        help="set a variable to its value in this shell, which keeps it out of the arguments; repeatable",
    )  # fmt: skip
    verb.add_argument(
        "--unset", action="append", default=[], metavar="K", help="remove a variable; repeatable"
    )
    verb.add_argument(
        "--save-first",
        action="store_true",
        help="save first, the way --save-on of the launch says; else do nothing",
    )
    verb.add_argument(
        "--save-timeout", type=seconds, metavar="SECONDS", help="how long the save may take (default: 120)"
    )
    _reachable(verb)
    _sure(verb)
    _verbs_of_ranks(verbs)
    verb = _verb(
        verbs, "stop", "control:stop", help="stop a run (SIGTERM, then SIGKILL after the grace period)"
    )
    _run(verb)
    verb.add_argument("--grace", type=seconds, metavar="SECONDS", help="(default: the preset's)")
    _sure(verb)


def _removing(verbs: Verbs) -> None:
    verb = _verb(verbs, "rm", "removal:rm", help="remove runs that have ended, with their logs")
    verb.add_argument("runs", nargs="+", metavar="RUN", help="name, id or unique prefix")
    _sure(verb)
    verb = _verb(verbs, "prune", "removal:prune", help="remove ended runs by age, number or outcome")
    verb.add_argument(
        "--older-than", type=days, metavar="TIME", help="that ended so long ago: 30d, 12h, 45m"
    )
    verb.add_argument("--keep", type=count, metavar="N", help="except the newest N ended runs")
    verb.add_argument("--failed", action="store_true", help="only runs that failed or are lost")
    verb.add_argument("-n", "--dry-run", action="store_true", help="print what would be removed")
    _sure(verb)


def _marking(verbs: Verbs) -> None:
    verb = _verb(verbs, "note", "notes:note", help="write a note on a run, or print its notes")
    verb.add_argument("run", metavar="RUN", help="name, id or unique prefix")
    verb.add_argument(
        "text",
        nargs="*",
        default=[],
        metavar="TEXT",
        help='the note (default: print those there are; "": none)',
    )
    verb.set_defaults(many="text")
    verb.add_argument("--clear", action="store_true", help="remove all notes of the run")
    _json(verb)
    verb = _verb(
        verbs, "tag", "notes:tag", help="add tags to a run or take them away, or print them",
        usage="distui tag RUN [+TAG | -TAG]… [--json]",
    )  # fmt: skip
    verb.add_argument("run", metavar="RUN", help="name, id or unique prefix")
    verb.set_defaults(many="tags")
    verb.add_argument("tags", nargs="*", default=[], metavar="+TAG", help="add a tag; + may be left out")
    verb.add_argument(
        "--remove",
        action="append",
        default=[],
        metavar="TAG",
        help="take a tag away, as -TAG does; repeatable",
    )
    _json(verb)


def _verbs_of_ranks(verbs: Verbs) -> None:
    verb = _verb(verbs, "signal", "control:send_signal", help="send a signal to ranks")
    _run(verb)
    verb.add_argument("signal", metavar="SIG", help="e.g. USR1")
    _ranks(verb)
    _sure(verb)
    verb = _verb(
        verbs, "dump", "diagnose:dump", help="print stacks, flight recorders or memory of the ranks"
    )
    _run(verb)
    verb.add_argument("what", choices=("stacks", "flight", "memory"))
    _ranks(verb)
    verb.add_argument("--raw", action="store_true", help="print each rank's answer instead of merging them")
    verb.add_argument("--out", metavar="DIR", help="also write each rank's answer to a file in DIR")
    verb.add_argument(
        "--record", action="store_true", help="memory: have torch record allocations for later snapshots"
    )
    _json(verb)
    _profile(verbs)


def _profile(verbs: Verbs) -> None:
    verb = _verb(
        verbs, "profile", "profile:profile", help="record steps of ranks with torch.profiler, and sum up the traces",
        usage="distui profile [RUN | DIR | FILE] [--ranks LIST] [--steps N] [--timeout SECONDS] [--out DIR] [--json]",
    )  # fmt: skip
    verb.add_argument(
        "run", nargs="?", metavar="RUN|DIR|FILE",
        help="name, id or unique prefix of a live run (default: the only one); or traces, which are shown",
    )  # fmt: skip
    verb.add_argument(
        "-r", "--ranks", "--rank", type=rank_list, action="append", default=[], metavar="LIST",
        help="only these, as in 0,5 or 0-7; all (default)",
    )  # fmt: skip
    verb.add_argument("--steps", type=count, default=3, metavar="N", help="optimizer steps (default: 3)")
    verb.add_argument(
        "--timeout", type=seconds, metavar="SECONDS", help="give up after SECONDS (default: by the pace)"
    )
    verb.add_argument("--out", metavar="DIR", help="copy the traces to DIR (default: the run's directory)")
    _json(verb)


def _reachable(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--reachable",
        action="store_true",
        help="restart an elastic run without the nodes that do not answer",
    )


def _sure(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("-y", "--yes", action="store_true", help="do not ask")
    _json(verb)


def _clusters(verbs: Verbs) -> None:
    verb = _verb(
        verbs,
        "candidates",
        "launch:candidates",
        help="list the nodes SkyPilot would take, and their prices",
    )
    verb.add_argument(
        "--on", default="sky", metavar="INFRA",
        help="infrastructure to search (default: all that SkyPilot has enabled)",
    )  # fmt: skip
    verb.add_argument("--nnodes", "--num-nodes", metavar="N", help="nodes (default: 1)")
    _add_all(verb, "candidates", NODES)
    _json(verb)
    verb = _verb(verbs, "down", "launch:down", help="tear down the cluster of a run, with everything on it")
    _run(verb)
    verb.add_argument("-y", "--yes", metavar="CLUSTER", help="the cluster's name: do not ask for it")
    _json(verb)
    verb = _verb(
        verbs,
        "autostop",
        "launch:autostop",
        help="set the idle time after which a run's cluster is torn down",
    )
    verb.add_argument("run", metavar="RUN")
    verb.add_argument("minutes", type=minutes, metavar="MINUTES|off", help="idle minutes, or off")
    _json(verb)
    verb = _verb(
        verbs, "rerun", "launch:rerun", aliases=["relaunch"],
        help="repeat a launch as a new run, with changes; on the same cluster if it is up",
    )  # fmt: skip
    _run(verb)
    _add(verb, option("--set"))
    verb.add_argument(
        "--env", action="append", default=[], metavar="K=V", help="change a variable; repeatable"
    )
    verb.add_argument(
        "--unset", action="append", default=[], metavar="K", help="remove a variable; repeatable"
    )
    verb.add_argument("--name", metavar="NAME", help="name of the new run (default: the same)")
    for flag in ("--detach", "--quiet", "--dry-run", "--json"):
        _add(verb, option(flag))


def _presets(verbs: Verbs) -> None:
    verb = _verb(
        verbs, "presets", "presets:presets", help="list, show or create presets; nccl: settings and variables of NCCL",
        usage="distui presets [--json] | show NAME [--set F=VALUE] | new NAME [--base NAME | --from FILE|RUN]"
        " | nccl [NAME]",
    )  # fmt: skip
    verb.add_argument("action", nargs="?", choices=("show", "new", "nccl"))
    verb.add_argument("name", nargs="?", metavar="NAME")
    verb.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="as for launch")
    verb.add_argument("--base", default="ddp", metavar="NAME", help="preset to build on (default: ddp)")
    verb.add_argument("--from", dest="source", metavar="FILE|RUN",
        help="import accelerate's YAML, DeepSpeed's JSON, a SkyPilot task or the plan of a run",
    )  # fmt: skip
    _json(verb)
    verb = _verb(
        verbs, "trust", "presets:trust", help="trust a configuration file that other users can write, as it is now",
        usage="distui trust [PATH] | --list | --remove [PATH]",
    )  # fmt: skip
    verb.add_argument("path", nargs="?", metavar="PATH", help="(default: the nearest distui.toml)")
    ways = verb.add_mutually_exclusive_group()
    ways.add_argument("--list", action="store_true", help="list trusted files")
    ways.add_argument("--remove", action="store_true", help="stop trusting the file")
    _json(verb)


def _advise(verbs: Verbs) -> None:
    verb = _verb(
        verbs, "advise", "advise:advise", help="estimate which strategies fit into the memory of GPUs"
    )
    model, add = verb.add_mutually_exclusive_group(required=True), verb.add_argument
    model.add_argument("--params", metavar="N", help="the model's parameters: 7B, 350M")
    model.add_argument(
        "--script", metavar="PATH[:NAME]", help="file (and class or function) that defines the model"
    )
    add("--model-args", default="", metavar="K=V,…", help="arguments of --script's class or function")
    add("--python", metavar="PATH", help="interpreter of the training environment, for --script")
    add("--gpus", required=True, metavar="COUNTxNAME", help="GPUs of one node, as in 8xA100-80GB")
    add("--nodes", type=count, default=1, metavar="N", help="(default: 1)")
    add("--gpu-memory", type=gigabytes, metavar="GB", help="memory of each GPU, for models not in the list")
    add("--host-memory", type=gigabytes, metavar="GB", help="memory of each node (default: enough)")
    add("--layers", type=count, metavar="N", help="layers (default: typical for that many parameters)")
    add("--hidden", type=count, metavar="N", help="hidden size (default: typical)")
    add("--vocab", type=count, metavar="N", help="vocabulary size (default: 32000)")
    add("--seq", type=count, default=2048, metavar="N", help="sequence length (default: 2048)")
    add("--micro-batch", type=count, default=1, metavar="N", help="sequences per GPU (default: 1)")
    add("--recompute", action="store_true", help="activation checkpointing of every layer")
    add(
        "--format", choices=("bf16", "mixed", "fp32"), default="bf16",
        help="bytes per parameter of weights, gradients, Adam: 2+2+8, 2+2+12, 4+4+8 (default: bf16)",
    )  # fmt: skip
    _json(verb)


def _doctor(verbs: Verbs) -> None:
    verb = _verb(verbs, "doctor", "doctor:doctor", help="check that this node (or --hosts) can run a job")
    _run(verb, "this node")
    _add_all(verb, "doctor", HOSTS)
    verb.add_argument("--python", metavar="PATH", help="interpreter of the training environment")
    verb.add_argument("--port", type=int, metavar="PORT", help="rendezvous port on the first node")
    verb.add_argument(
        "--no-pairs", dest="pairs", action="store_false", help="skip the all-reduce between pairs of nodes"
    )
    verb.add_argument(
        "--size", type=count, default=16, metavar="MiB", help="all-reduce size in MiB (default: 16)"
    )
    _json(verb)


def _bundles(verbs: Verbs) -> None:
    verb = _verb(
        verbs, "diagnose", "diagnose:diagnose", help="find the root cause in NCCL and PyTorch logs",
        usage="distui diagnose [FILE… | BUNDLE | RUN] [--json]",
    )  # fmt: skip
    verb.add_argument(
        "names", nargs="*", metavar="FILE|RUN",
        help="log files, archives or directories (- is standard input), a bundle of `distui export`, or a run",
    )  # fmt: skip
    _json(verb)
    verb = _verb(
        verbs, "export", "diagnose:export", help="write a run to one file, which `distui replay` opens"
    )
    verb.add_argument("run", metavar="RUN")
    verb.add_argument("file", metavar="FILE", help="output file, e.g. run.tar.gz")
    verb.add_argument(
        "--logs", type=count, default=4, metavar="MiB",
        help="size kept of the end of each log, beside its first 256 KiB (default: 4)",
    )  # fmt: skip
    verb.add_argument("--with-traces", action="store_true", help="also the traces of `distui profile`")
    verb.add_argument("-f", "--force", action="store_true", help="overwrite FILE")
    _json(verb)
    verb = _verb(
        verbs, "replay", "runs:replay", help="open the record of a run that has ended, or a bundle"
    )
    verb.add_argument("run", nargs="?", metavar="FILE|RUN", help="a bundle of `distui export`, or a run")
    _readonly(verb)


def _notices(verbs: Verbs) -> None:
    verb = _verb(
        verbs, "notify", "notify:notify", help="list the ways on which notices of runs go, or test them",
        usage="distui notify [list | test [WAY] | log [RUN]] [--json]",
    )  # fmt: skip
    verb.add_argument("action", nargs="?", choices=("list", "test", "log"), default="list")
    verb.add_argument("name", nargs="?", metavar="WAY|RUN", help="test: only this way; log: of this run")
    _json(verb)


def _mcp(verbs: Verbs) -> None:
    verb = _verb(
        verbs, "mcp", "mcp:mcp", help="serve the verbs to language models, by MCP on stdin and stdout"
    )
    verb.add_argument(
        "--allow-control", action="store_true", help="also start and change runs (default: only read)"
    )
    verb.add_argument(
        "--skill", action="store_true", help="print SKILL.md, which says how to use distui, and exit"
    )


def names_hosts(options: argparse.Namespace) -> bool:
    """Whether the user named hosts."""
    return options.hosts is not None or options.hostfile is not None


HANDED_OVER = "DISTUI_HANDED_OVER"
"""Values of --env as JSON: an argument every user of the host could read, a variable of its own name would act on distui
and on all that it starts."""


def handed_over(environ: MutableMapping[str, str]) -> list[str]:
    """The options that HANDED_OVER holds, which is removed from the environment."""
    values: dict[str, str] = json.loads(environ.pop(HANDED_OVER, "{}"))
    return [f"--env={name}={value}" for name, value in values.items()]


def cloud_words(options: argparse.Namespace) -> list[str]:
    """Which options about nodes of SkyPilot's were given, as they are written."""
    return [each.flags[0] for each in launch_options("launch", NODES) if getattr(options, each.name)]
