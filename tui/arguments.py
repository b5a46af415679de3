"""What each verb takes, and which verbs change runs. Imports nothing heavy, so that `--help` costs nothing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, MutableMapping
from typing import Any

from ..runners.launch.options import ABOUT, HOSTS, NODES, RUN, LaunchOption, option
from ..runners.launch.options import options as launch_options
from .option_values import cap, count, duration, gigabytes, minutes, moment, rank_list, seconds

CHANGES = frozenset(
    ["autostop", "down", "nccl", "note", "profile", "prune", "restart", "rm", "signal", "stop", "tag"]
)
"""Change a run that is there."""

Verbs = Any  # argparse has no public name for what add_subparsers returns


def add_verbs(verbs: Verbs) -> None:
    """Every verb, in the order in which a run meets them."""
    _launch(verbs, "launch", "start a run and open the cockpit on it", "launch:launch")
    _launch(verbs, "plan", "print what launch would do, without doing it", "launch:plan")
    _launch(verbs, "lint", "check a launch or configuration files before you pay for GPUs", "lint:lint")
    usage = "distui exec [options] -- COMMAND…"
    verb = _verb(verbs, "exec", "launch:execute", "run any command under supervision", usage=usage)
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
    verb = _verb(verbs, "demo", "demo:demo", "train the shipped example and open the cockpit on it")
    verb.add_argument("--preset", help="preset to train under (default: ddp)")
    _takes(verb, "--python", "PATH", "interpreter of an environment that has torch")
    verb.add_argument("--steps", type=count, default=2000, help="optimizer steps (default: 2000)")
    _takes(verb, "--nproc-per-node", "N", "ranks (default: 2)", default="2")
    _switch(verb, "--hang", "let the last rank hang after 100 steps, to see it found")
    for flag in ("--detach", "--quiet", "--json"):
        _add(verb, option(flag))
    _of_distui(verbs)


def _of_distui(verbs: Verbs) -> None:
    verb = _verb(
        verbs, "settings", "show_settings:settings", "show the settings, and where each value comes from"
    )
    _switch(verb, "--example", "print a settings file with every key as a comment")
    _json(verb)
    verb = _verb(verbs, "man", "man:man", "show the man page of distui or of a verb")
    verb.add_argument("name", nargs="?", metavar="VERB")
    _takes(verb, "--dir", "DIR", "write all pages into DIR, as ~/.local/share/man/man1")
    verb = _verb(verbs, "completion", "completion:script", "print the completion script of a shell")
    verb.add_argument("shell", nargs="?", choices=("bash", "zsh", "fish"), help="(default: that of $SHELL)")


def _verb(verbs: Verbs, name: str, function: str, help: str, **about: Any) -> argparse.ArgumentParser:
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


def _switch(options: argparse._ActionsContainer, flags: str, help: str, **about: Any) -> None:
    options.add_argument(*flags.split(), action="store_true", help=help, **about)


def _takes(options: argparse._ActionsContainer, flags: str, metavar: str, help: str, **about: Any) -> None:
    """An option with a value."""
    options.add_argument(*flags.split(), metavar=metavar, help=help, **about)


def _many(options: argparse._ActionsContainer, flags: str, metavar: str, help: str, **about: Any) -> None:
    """An option that may be repeated."""
    _takes(options, flags, metavar, f"{help}; repeatable", **about | {"action": "append", "default": []})


def _add(options: argparse._ActionsContainer, option: LaunchOption) -> None:
    """An option of the table."""
    flags = " ".join(option.flags)
    if not option.takes:
        _switch(options, flags, option.help)
        return
    add = _many if option.repeat else _takes
    add(options, flags, option.takes, option.help, type=PARSERS[option.parse], default=option.default)


def _add_all(verb: argparse.ArgumentParser, name: str, *headings: str) -> None:
    """The options of the table that a verb has, heading by heading."""
    for heading in headings:
        group = verb.add_argument_group(heading, ABOUT[heading]) if heading else verb
        for each in launch_options(name, heading):
            _add(group, each)


def _launch(verbs: Verbs, name: str, summary: str, function: str) -> None:
    files = " | FILE… | -- COMMAND…" * (name == "lint")
    usage = f"distui {name} PRESET [options] -- SCRIPT [ARGS…]{files}"
    verb = _verb(verbs, name, function, summary, usage=usage)
    many = "*" if files else "?"
    verb.add_argument("preset", nargs=many, metavar="PRESET", help="`distui presets` lists them")
    _add_all(verb, name, RUN, HOSTS, NODES)
    verb.set_defaults(detach=False, dry_run=False, takes_rest=True)


def _run(verb: argparse.ArgumentParser, default: str = "the only live run, else the newest") -> None:
    verb.add_argument(
        "run", nargs="?", metavar="RUN", help=f"name, id or unique prefix (default: {default})"
    )


def _json(verb: argparse.ArgumentParser) -> None:
    _switch(verb, "--json", "print JSON on stdout and nothing else")


def _ranks(verb: argparse.ArgumentParser) -> None:
    _many(verb, "-r --rank", "N", "only this rank", type=count)


def _readonly(verb: argparse.ArgumentParser) -> None:
    _switch(verb, "--readonly", "allow nothing that changes a run", default=argparse.SUPPRESS)


def _reading(verbs: Verbs) -> None:
    verb = _verb(verbs, "watch", "status:watch", "show jobs that distui did not start, read-only")
    verb.add_argument("pid", nargs="?", type=int, metavar="PID", help="any process of the job")
    _json(verb)
    _listing(verbs)
    verb = _verb(verbs, "attach", "runs:attach", "open the cockpit on a run")
    _run(verb)
    _readonly(verb)
    _takes(verb, "--host", "NAME", "attach to a run on this host, via ssh")
    _takes(verb, "--compare", "RUN", "open it with another run, an attempt (RUN@2, @2) or a bundle over it")
    _add(verb, option("--ssh-config"))
    verb = _verb(verbs, "status", "status:status", "show the current state of a run")
    _run(verb)
    _switch(verb, "-w --watch", "again every 2 s until the run has ended; JSON: an object a line")
    _json(verb)
    verb = _verb(verbs, "events", "runs:events", "print the journal of a run")
    _run(verb)
    _switch(verb, "-f --follow", "keep following new output")
    _json(verb)
    verb = _verb(verbs, "wait", "runs:wait", "wait for a run and exit with its outcome")
    _run(verb)
    verb.add_argument(
        "--until", choices=("running", "healthy", "done"), default="done", help="(default: done)"
    )
    _takes(verb, "--timeout", "SECONDS", "give up after SECONDS (exit code 124)", type=seconds)
    _json(verb)
    _logs(verbs)


def _listing(verbs: Verbs) -> None:
    verb = _verb(verbs, "ls", "listing:ls", "list runs")
    verb.add_argument(
        "filter",
        nargs="*",
        metavar="FILTER",
        help="only runs that fit all: state:failed preset:fsdp2 'age<2d'",
    )
    verb.set_defaults(many="filter")
    _takes(verb, "--sort", "COLUMN", "order by a column (default: the newest first)")
    _switch(verb, "--reverse", "the other way round")
    _takes(verb, "--columns", "A,B,…", "print these columns")
    _switch(verb, "-w --watch", "print the list again and again, until Ctrl-C")
    _takes(verb, "--every", "SECONDS", "with --watch: how often (default: 2)", type=seconds)
    _many(verb, "--host", "NAME", "list the runs on this host, via ssh")
    _add(verb, option("--ssh-config"))
    _json(verb)


def _logs(verbs: Verbs) -> None:
    verb = _verb(verbs, "logs", "logs:logs", "print the logs of the ranks")
    _run(verb)
    _ranks(verb)
    _takes(verb, "--node", "N", "only this node", type=count)
    verb.add_argument(
        "--stream", action="append", choices=("out", "err", "nccl", "log"), default=[],
        help="repeatable (default: out and err; log: of runner and agent)",
    )  # fmt: skip
    _switch(verb, "-f --follow", "keep following new output")
    _takes(verb, "-n --tail", "N", "only the last N lines", type=count)
    _takes(verb, "--since", "TIME", "only lines since 10m ago (s, h, d), or since 10:06:29", type=moment)
    _switch(verb, "-t --timestamps", "print the time of each line")
    _json(verb)
    _takes(verb, "--grep", "RE", "only lines that match", default="")
    _takes(verb, "--attempt", "N", "(default: the newest)", type=count)
    _metrics(verbs)
    _diff(verbs)


def _diff(verbs: Verbs) -> None:
    verb = _verb(
        verbs, "diff", "diff:diff", "compare two runs, attempts or bundles: what differs, and by how much",
        usage="distui diff A B [--all] [--json] [--exit-code]",
    )  # fmt: skip
    about = "RUN, RUN@ATTEMPT, HOST:RUN or the file of a bundle"
    verb.add_argument("a", metavar="A", help=about)
    verb.add_argument("b", metavar="B", nargs="?", help="the same; without it, the record of A is printed")
    _switch(verb, "--all", "also what is the same, and variables of the terminal")
    _switch(verb, "--exit-code", "exit with 1 if something differs")
    _add(verb, option("--ssh-config"))
    _json(verb)


def _metrics(verbs: Verbs) -> None:
    verb = _verb(verbs, "metrics", "metrics:metrics", "print metrics of a run over time")
    _run(verb)
    verb.add_argument(
        "metric", nargs="*", metavar="METRIC", help="gpu.util, rank.step_s, train, … (default: all)"
    )
    _switch(verb, "--list", "list the metrics; of RUN, those that it has")
    about = "only this long before now, or before the run's end: 10m, 2h"
    _takes(verb, "--last", "TIME", about, type=duration)
    _takes(verb, "--since", "TIME", "10m (ago), 12:40, 2026-01-31T12:40 or unix seconds", type=moment)
    _takes(verb, "--until", "TIME", "the same (default: now)", type=moment)
    _ranks(verb)
    _many(verb, "--gpu", "N", "only this GPU", type=count)
    _switch(verb, "--fold", "one row a metric, of all ranks and GPUs together")
    _json(verb)


def _changing(verbs: Verbs) -> None:
    verb = _verb(verbs, "nccl", "control:nccl", "change NCCL_DEBUG of a running job")
    _run(verb)
    verb.add_argument("level", metavar="LEVEL", help="VERSION, WARN, INFO or TRACE")
    _takes(verb, "--subsys", "A,B", "NCCL_DEBUG_SUBSYS, e.g. COLL,NET", default="")
    _takes(verb, "--for", "SECONDS", "revert after SECONDS", dest="seconds", type=seconds)
    _switch(verb, "--restart", "apply by restarting the worker group instead of live")
    _reachable(verb)
    _ranks(verb)
    _json(verb)
    verb = _verb(verbs, "restart", "control:restart", "restart the worker group in place")
    _run(verb)
    _many(verb, "--env", "K=V", "change a variable")
    _many(
        verb,
        "--env-from-shell",
        "K",
        "set a variable to its value in this shell, which keeps it out of the arguments",
        dest="from_shell",
    )
    _many(verb, "--unset", "K", "remove a variable")
    _switch(verb, "--save-first", "save first, the way --save-on of the launch says; else do nothing")
    _takes(verb, "--save-timeout", "SECONDS", "how long the save may take (default: 120)", type=seconds)
    _reachable(verb)
    _sure(verb)
    _verbs_of_ranks(verbs)
    verb = _verb(verbs, "stop", "control:stop", "stop a run (SIGTERM, then SIGKILL after the grace period)")
    _run(verb)
    _takes(verb, "--grace", "SECONDS", "(default: the preset's)", type=seconds)
    _sure(verb)


def _removing(verbs: Verbs) -> None:
    verb = _verb(verbs, "rm", "removal:rm", "remove runs that have ended, with their logs")
    verb.add_argument("runs", nargs="+", metavar="RUN", help="name, id or unique prefix")
    _sure(verb)
    verb = _verb(verbs, "prune", "removal:prune", "remove ended runs by age, number or outcome")
    _takes(verb, "--older-than", "TIME", "that ended so long ago: 30d, 12h, 45m", type=duration)
    _takes(verb, "--keep", "N", "except the newest N ended runs", type=count)
    _switch(verb, "--failed", "only runs that failed or are lost")
    _switch(verb, "-n --dry-run", "print what would be removed")
    _sure(verb)


def _marking(verbs: Verbs) -> None:
    verb = _verb(verbs, "note", "notes:note", "write a note on a run, or print its notes")
    verb.add_argument("run", metavar="RUN", help="name, id or unique prefix")
    verb.add_argument(
        "text",
        nargs="*",
        default=[],
        metavar="TEXT",
        help='the note (default: print those there are; "": none)',
    )
    verb.set_defaults(many="text")
    _switch(verb, "--clear", "remove all notes of the run")
    _json(verb)
    verb = _verb(
        verbs, "tag", "notes:tag", "add tags to a run or take them away, or print them",
        usage="distui tag RUN [+TAG | -TAG]… [--json]",
    )  # fmt: skip
    verb.add_argument("run", metavar="RUN", help="name, id or unique prefix")
    verb.set_defaults(many="tags")
    verb.add_argument("tags", nargs="*", default=[], metavar="+TAG", help="add a tag; + may be left out")
    _many(verb, "--remove", "TAG", "take a tag away, as -TAG does")
    _json(verb)


def _verbs_of_ranks(verbs: Verbs) -> None:
    verb = _verb(verbs, "signal", "control:send_signal", "send a signal to ranks")
    _run(verb)
    verb.add_argument("signal", metavar="SIG", help="e.g. USR1")
    _ranks(verb)
    _sure(verb)
    verb = _verb(verbs, "dump", "diagnose:dump", "print stacks, flight recorders or memory of the ranks")
    _run(verb)
    verb.add_argument("what", choices=("stacks", "flight", "memory"))
    _ranks(verb)
    _switch(verb, "--raw", "print each rank's answer instead of merging them")
    _takes(verb, "--out", "DIR", "also write each rank's answer to a file in DIR")
    _switch(verb, "--record", "memory: have torch record allocations for later snapshots")
    _json(verb)
    _profile(verbs)


def _profile(verbs: Verbs) -> None:
    verb = _verb(
        verbs, "profile", "profile:profile", "record steps of ranks with torch.profiler, and sum up the traces",
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
    _takes(verb, "--steps", "N", "optimizer steps (default: 3)", type=count, default=3)
    _takes(verb, "--timeout", "SECONDS", "give up after SECONDS (default: by the pace)", type=seconds)
    _takes(verb, "--out", "DIR", "copy the traces to DIR (default: the run's directory)")
    _json(verb)


def _reachable(verb: argparse.ArgumentParser) -> None:
    _switch(verb, "--reachable", "restart an elastic run without the nodes that do not answer")


def _sure(verb: argparse.ArgumentParser) -> None:
    _switch(verb, "-y --yes", "do not ask")
    _json(verb)


def _clusters(verbs: Verbs) -> None:
    verb = _verb(
        verbs, "candidates", "launch:candidates", "list the nodes SkyPilot would take, and their prices"
    )
    _takes(
        verb,
        "--on",
        "INFRA",
        "infrastructure to search (default: all that SkyPilot has enabled)",
        default="sky",
    )
    _takes(verb, "--nnodes --num-nodes", "N", "nodes (default: 1)")
    _add_all(verb, "candidates", NODES)
    _json(verb)
    verb = _verb(verbs, "down", "launch:down", "tear down the cluster of a run, with everything on it")
    _run(verb)
    _takes(verb, "-y --yes", "CLUSTER", "the cluster's name: do not ask for it")
    _json(verb)
    verb = _verb(
        verbs, "autostop", "launch:autostop", "set the idle time after which a run's cluster is torn down"
    )
    verb.add_argument("run", metavar="RUN")
    verb.add_argument("minutes", type=minutes, metavar="MINUTES|off", help="idle minutes, or off")
    _json(verb)
    verb = _verb(
        verbs, "rerun", "launch:rerun",
        help="repeat a launch as a new run, with changes; on the same cluster if it is up",
    )  # fmt: skip
    _run(verb)
    _add(verb, option("--set"))
    _many(verb, "--env", "K=V", "change a variable")
    _many(verb, "--unset", "K", "remove a variable")
    _takes(verb, "--name", "NAME", "name of the new run (default: the same)")
    for flag in ("--detach", "--quiet", "--dry-run", "--json"):
        _add(verb, option(flag))


def _presets(verbs: Verbs) -> None:
    verb = _verb(
        verbs, "presets", "presets:presets", "list, show or create presets; nccl: settings and variables of NCCL",
        usage="distui presets [--json] | show NAME [--set F=VALUE] | new NAME [--base NAME | --from FILE|RUN]"
        " | nccl [NAME]",
    )  # fmt: skip
    verb.add_argument("action", nargs="?", choices=("show", "new", "nccl"))
    verb.add_argument("name", nargs="?", metavar="NAME")
    verb.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="as for launch")
    _takes(verb, "--base", "NAME", "preset to build on (default: ddp)", default="ddp")
    _takes(
        verb,
        "--from",
        "FILE|RUN",
        "import accelerate's YAML, DeepSpeed's JSON, a SkyPilot task or the plan of a run",
        dest="source",
    )
    _json(verb)
    verb = _verb(
        verbs, "trust", "presets:trust", "trust a configuration file that other users can write, as it is now",
        usage="distui trust [PATH] | --list | --remove [PATH]",
    )  # fmt: skip
    verb.add_argument("path", nargs="?", metavar="PATH", help="(default: the nearest distui.toml)")
    ways = verb.add_mutually_exclusive_group()
    _switch(ways, "--list", "list trusted files")
    _switch(ways, "--remove", "stop trusting the file")
    _json(verb)


def _advise(verbs: Verbs) -> None:
    verb = _verb(verbs, "advise", "advise:advise", "estimate which strategies fit into the memory of GPUs")
    model = verb.add_mutually_exclusive_group(required=True)
    _takes(model, "--params", "N", "the model's parameters: 7B, 350M")
    _takes(model, "--script", "PATH[:NAME]", "file (and class or function) that defines the model")
    _takes(verb, "--model-args", "K=V,…", "arguments of --script's class or function", default="")
    _takes(verb, "--python", "PATH", "interpreter of the training environment, for --script")
    _takes(verb, "--gpus", "COUNTxNAME", "GPUs of one node, as in 8xA100-80GB", required=True)
    _takes(verb, "--nodes", "N", "(default: 1)", type=count, default=1)
    _takes(verb, "--gpu-memory", "GB", "memory of each GPU, for models not in the list", type=gigabytes)
    _takes(verb, "--host-memory", "GB", "memory of each node (default: enough)", type=gigabytes)
    _takes(verb, "--layers", "N", "layers (default: typical for that many parameters)", type=count)
    _takes(verb, "--hidden", "N", "hidden size (default: typical)", type=count)
    _takes(verb, "--vocab", "N", "vocabulary size (default: 32000)", type=count)
    _takes(verb, "--seq", "N", "sequence length (default: 2048)", type=count, default=2048)
    _takes(verb, "--micro-batch", "N", "sequences per GPU (default: 1)", type=count, default=1)
    _switch(verb, "--recompute", "activation checkpointing of every layer")
    verb.add_argument(
        "--format", choices=("bf16", "mixed", "fp32"), default="bf16",
        help="bytes per parameter of weights, gradients, Adam: 2+2+8, 2+2+12, 4+4+8 (default: bf16)",
    )  # fmt: skip
    _json(verb)


def _doctor(verbs: Verbs) -> None:
    verb = _verb(verbs, "doctor", "doctor:doctor", "check that this node (or --hosts) can run a job")
    _run(verb, "this node")
    _add_all(verb, "doctor", HOSTS)
    _takes(verb, "--python", "PATH", "interpreter of the training environment")
    _takes(verb, "--port", "PORT", "rendezvous port on the first node", type=int)
    verb.add_argument(
        "--no-pairs", dest="pairs", action="store_false", help="skip the all-reduce between pairs of nodes"
    )
    _takes(verb, "--size", "MiB", "all-reduce size in MiB (default: 16)", type=count, default=16)
    _json(verb)


def _bundles(verbs: Verbs) -> None:
    verb = _verb(
        verbs, "diagnose", "diagnose:diagnose", "find the root cause in NCCL and PyTorch logs",
        usage="distui diagnose [FILE… | BUNDLE | RUN] [--json]",
    )  # fmt: skip
    verb.add_argument(
        "names", nargs="*", metavar="FILE|RUN",
        help="log files, archives or directories (- is standard input), a bundle of `distui export`, or a run",
    )  # fmt: skip
    _json(verb)
    verb = _verb(verbs, "export", "diagnose:export", "write a run to one file, which `distui replay` opens")
    verb.add_argument("run", metavar="RUN")
    verb.add_argument("file", metavar="FILE", help="output file, e.g. run.tar.gz")
    _takes(
        verb,
        "--logs",
        "MiB",
        "size kept of the end of each log, beside its first 256 KiB (default: 4)",
        type=count,
        default=4,
    )
    _switch(verb, "--with-traces", "also the traces of `distui profile`")
    _switch(verb, "-f --force", "overwrite FILE")
    _json(verb)
    verb = _verb(verbs, "replay", "runs:replay", "open the record of a run that has ended, or a bundle")
    verb.add_argument("run", nargs="?", metavar="FILE|RUN", help="a bundle of `distui export`, or a run")
    _readonly(verb)


def _notices(verbs: Verbs) -> None:
    verb = _verb(
        verbs, "notify", "notify:notify", "list the ways on which notices of runs go, or test them",
        usage="distui notify [list | test [WAY] | log [RUN]] [--json]",
    )  # fmt: skip
    verb.add_argument("action", nargs="?", choices=("list", "test", "log"), default="list")
    verb.add_argument("name", nargs="?", metavar="WAY|RUN", help="test: only this way; log: of this run")
    _json(verb)


def _mcp(verbs: Verbs) -> None:
    verb = _verb(verbs, "mcp", "mcp:mcp", "serve the verbs to language models, by MCP on stdin and stdout")
    _switch(verb, "--allow-control", "also start and change runs (default: only read)")
    _switch(verb, "--skill", "print SKILL.md, which says how to use distui, and exit")


def names_hosts(options: argparse.Namespace) -> bool:
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
