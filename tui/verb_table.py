"""Declarations of all verbs, the source of the parser, `--help`, the man pages and completion.

A new verb is a row here, its function in `tui/verbs/` and, if language models may use it, a tool in `tui/mcp/tools.py`.
This module imports nothing slow, since every command needs it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from ..presets.launch_option import HOSTS, NODES, RUN
from ..presets.launch_option import SSH_CONFIG as SSH_CONFIG_OPTION
from ..runners.launch.option_values import count, minutes, seconds
from .arguments import (
    Exits,
    Verb,
    exclusive,
    launch_headings,
    launch_option,
    of_launch,
    switch,
    value,
    values,
    word,
)
from .exit_codes import FAILED, LOST, NO_RUN, TIMED_OUT, UNKNOWN_OUTCOME, UNREACHABLE
from .option_values import duration, gigabytes, moment, rank_list

PRESET_HELP = "`distui presets` lists them"
RUN_HELP = "name, id or unique prefix"
DEFAULT_RUN = "(default: the only live run, else the newest)"
ONE_RUN = word("run", "RUN", f"{RUN_HELP} {DEFAULT_RUN}", nargs="?")
RUN_OR_BUNDLE = word(
    "run", "RUN|BUNDLE", f"{RUN_HELP}; or the file of a bundle of `distui export` {DEFAULT_RUN}", nargs="?"
)
NAMED_RUN = word("run", "RUN", RUN_HELP)
JSON = switch("--json", "print JSON on stdout and nothing else")
YES = switch("-y --yes", "do not ask")
RANKS = value(
    "-r --rank --ranks",
    "LIST",
    "only these ranks, as in 0,5 or 0-7 (default: all); repeatable",
    type=rank_list,
    action="extend",
    default=[],
)
FOLLOW = switch("-f --follow", "keep following new output")
READONLY = switch("--readonly", "allow nothing that changes a run", default=argparse.SUPPRESS)
REACHABLE = switch("--reachable", "restart an elastic run without the nodes that do not answer")
SSH_CONFIG = of_launch(SSH_CONFIG_OPTION)
CHANGED_VARIABLES = values("--env", "K=V", "change a variable")
REMOVED_VARIABLES = values("--unset", "K", "remove a variable")

LAUNCH_USAGE = "PRESET [options] -- SCRIPT [ARGS…]"
TRAINING_FAILED = "the training failed"
NOT_REMOVED = "a run could not be removed"
ERROR_FOUND = "an error is among the findings"
READS_A_RUN = Exits((NO_RUN, UNREACHABLE))
COMMANDS_A_RUN = Exits((FAILED, NO_RUN, UNREACHABLE, UNKNOWN_OUTCOME))

_START = {
    "launch": Verb(
        "launch:launch",
        "start a run and open the cockpit on it",
        options=(
            word("preset", "PRESET", PRESET_HELP, nargs="?"),
            launch_headings("launch", RUN, HOSTS, NODES),
        ),
        usage=f"distui launch {LAUNCH_USAGE}",
        has_command=True,
        examples={
            "launch ddp -- train.py --lr 1e-3": "on all GPUs of this machine, then the cockpit",
            "launch fsdp2 --hosts gpu1,gpu2 --name night -- train.py": "on two machines, via ssh",
            "launch ddp --on sky --gpus H100:8 --spot -- train.py": "on the cheapest such node of a cloud",
        },
        exits=Exits((FAILED,), TRAINING_FAILED),
    ),
    "exec": Verb(
        "launch:execute",
        "run any command under supervision",
        options=(launch_headings("exec", RUN),),
        usage="distui exec [options] -- COMMAND…",
        has_command=True,
        examples={
            "exec -- torchrun --nproc-per-node 8 train.py": "any command, as it is",
            "exec --name night --restarts 3 -- bash train.sh": "restarted after failures",
            "exec --detach --json -- accelerate launch train.py": "start it and return",
        },
        exits=Exits((FAILED,), TRAINING_FAILED),
    ),
    "demo": Verb(
        "demo:demo",
        "open the cockpit on 16 simulated GPUs with faults to find, or train the shipped example",
        options=(
            value(
                "--hang-after", "SECONDS", "simulate only the hang, this long after the start", type=seconds
            ),
            switch("--real", "train here, on 2 ranks; also with the options below, and without a terminal"),
            value("--python", "PATH", "interpreter of an environment that has torch"),
            value("--steps", None, "optimizer steps (default: 2000)", type=count),
            value("--nproc-per-node", "N", "ranks (default: 2)"),
            switch("--hang", "let the last rank hang after 100 steps, to see the finding"),
            value("--name", "NAME", "name of the run (default: demo, or the next free demo-N)"),
            *map(launch_option, ("--detach", "--quiet", "--json")),
        ),
        examples={
            "demo": "2 nodes with 8 GPUs each, simulated: a hang, a hot GPU and a slow network, with hints",
            "demo --hang-after 4": "the same with one fault: in 20 s a hang, its cause, the stacks and a restart",
            "demo --hang": "a small training on 2 ranks of this machine, of which one hangs after 100 steps",
        },
        exits=Exits((FAILED,), TRAINING_FAILED),
    ),
    "example": Verb(
        "example:example",
        "print a training script to start with",
        options=(),
        examples={
            "example": "the script of the demo",
            "example > train.py": "write it into a file of your own",
            "example > ddp.py && distui launch ddp -- ddp.py": "write it, and train it",
        },
        exits=Exits(()),
    ),
    "rerun": Verb(
        "launch:rerun",
        "repeat a launch as a new run, with changes; on the same cluster if it is up",
        options=(
            ONE_RUN,
            launch_option("--set"),
            CHANGED_VARIABLES,
            REMOVED_VARIABLES,
            value("--name", "NAME", "name of the new run (default: the same)"),
            *map(launch_option, ("--detach", "--quiet", "--dry-run", "--json")),
        ),
        examples={
            "rerun night": "the same launch again, as a new run",
            "rerun night --set strategy.bucket_cap_mb=50 --env NCCL_DEBUG=INFO": "with a field and a variable changed",
            "rerun night --name night-2 -n": "print the plan of a new run that can run next to night",
        },
        exits=Exits((FAILED, NO_RUN), TRAINING_FAILED),
    ),
    "plan": Verb(
        "launch:plan",
        "print what launch would do, without doing it",
        options=(
            word("preset", "PRESET", PRESET_HELP, nargs="?"),
            launch_headings("plan", RUN, HOSTS, NODES),
        ),
        usage=f"distui plan {LAUNCH_USAGE}",
        has_command=True,
        examples={
            "plan ddp -- train.py": "command line, environment and files of every rank",
            "plan fsdp2 --nnodes 2 --hosts gpu1,gpu2 --json -- train.py": "the plan as JSON",
            "plan zero1 --adopt --try 10 -- train.py": "run 10 steps without and with --adopt, and compare the losses",
        },
        exits=Exits((FAILED,), "a run of --try failed"),
    ),
    "lint": Verb(
        "lint:lint",
        "check a launch or configuration files before you pay for GPUs",
        options=(
            word("preset", "PRESET", PRESET_HELP, nargs="*"),
            launch_headings("lint", RUN, HOSTS, NODES),
        ),
        usage=f"distui lint {LAUNCH_USAGE} | FILE… | -- COMMAND…",
        has_command=True,
        examples={
            "lint ddp --nproc-per-node 8 -- train.py": "check a launch before starting it",
            "lint job.sh ds_config.json": "check files of a launch that is not distui's",
            "lint -- torchrun --nproc-per-node 8 train.py": "a command",
        },
        exits=Exits((FAILED,), ERROR_FOUND),
    ),
}

_LOOK = {
    "ls": Verb(
        "listing:ls",
        "list runs",
        options=(
            word(
                "filter", "FILTER", "only runs that fit all: state:failed preset:fsdp2 'age<2d'", nargs="*"
            ),
            value("--sort", "COLUMN", "order by a column (default: the newest first)"),
            switch("--reverse", "reverse the order"),
            value("--columns", "A,B,…", "print only these columns, in this order"),
            values("--host", "NAME", "list the runs on this host, via ssh"),
            SSH_CONFIG,
            JSON,
        ),
        list_argument="filter",
        examples={
            "ls": "the runs of this machine, newest first",
            "ls state:failed preset:fsdp2 'age<2d' --sort size": "those that fit all words, the largest first",
            "ls --host gpu1 --host me@gpu2": "those of other machines, via ssh",
        },
        exits=Exits((UNREACHABLE,)),
    ),
    "attach": Verb(
        "cockpit:attach",
        "open the cockpit on a run",
        options=(
            word(
                "run",
                "RUN|SOCKET",
                f"{RUN_HELP}; or the socket of a `distui share` {DEFAULT_RUN}",
                nargs="?",
            ),
            READONLY,
            value("--host", "NAME", "attach to a run on this host, via ssh"),
            SSH_CONFIG,
        ),
        examples={
            "attach": "the only live run, else the newest",
            "attach night --readonly": "without keys that change the run",
            "attach night --host gpu1": "a run of another machine, via ssh",
        },
        exits=READS_A_RUN,
    ),
    "status": Verb(
        "status:status",
        "show the current state of a run",
        options=(
            RUN_OR_BUNDLE,
            switch("-w --watch", "repeat every 2 s until the run has ended; JSON: one object per line"),
            JSON,
        ),
        examples={
            "status": "state, ranks, GPUs and findings of the newest run",
            "status night -w": "repeatedly, until it has ended",
            "status night --json": "for scripts",
        },
        exits=READS_A_RUN,
    ),
    "logs": Verb(
        "logs:logs",
        "print the logs of the ranks",
        options=(
            RUN_OR_BUNDLE,
            RANKS,
            value("--node", "N", "only this node", type=count),
            value(
                "--stream",
                None,
                "only this stream (default: out and err; log: logs of distui's own runner and agent); repeatable",
                action="append",
                choices=("out", "err", "nccl", "log"),
                default=[],
            ),
            FOLLOW,
            value("-n --tail", "N", "only the last N lines", type=count),
            value("--since", "TIME", "only lines since 10m ago (s, h, d), or since 10:06:29", type=moment),
            switch("-t --timestamps", "print the time of each line"),
            JSON,
            value("--grep", "RE", "only lines that match", default=""),
            value("--attempt", "N", "only this attempt (default: all)", type=count),
        ),
        examples={
            "logs night -f -t": "all ranks as they write, with times",
            "logs night -r 3 -n 50": "the last 50 lines of rank 3",
            "logs night --since 10m --grep 'loss|error'": "lines of the last 10 minutes that match",
        },
        exits=Exits((FAILED, NO_RUN, UNREACHABLE), "a log cannot be read"),
    ),
    "metrics": Verb(
        "metrics:metrics",
        "print metrics of a run over time",
        options=(
            RUN_OR_BUNDLE,
            word("metric", "METRIC", "gpu.util, rank.step_s, train, … (default: all)", nargs="*"),
            switch("--list", "list the names of all metrics, or of the metrics of RUN"),
            value(
                "--last",
                "TIME",
                "only this long before now, or before the run's end: 10m, 2h",
                type=duration,
            ),
            value("--since", "TIME", "10m (ago), 12:40, 2026-01-31T12:40 or unix seconds", type=moment),
            value("--until", "TIME", "the same (default: now)", type=moment),
            RANKS,
            values("--gpu", "N", "only this GPU", type=count),
            switch("--fold", "one row per metric: merge the values of all ranks and GPUs"),
            JSON,
        ),
        examples={
            "metrics night": "newest, smallest, mean and largest value of each metric",
            "metrics night gpu.util rank.step_s --last 10m": "two metrics, of the last 10 minutes",
            "metrics night --list": "the names of its metrics",
        },
        exits=Exits((FAILED, NO_RUN, UNREACHABLE), "there are no values in the window"),
    ),
    "diff": Verb(
        "diff:diff",
        "compare two runs, attempts or bundles: what differs, and by how much",
        options=(
            word("a", "A", "RUN, RUN@ATTEMPT, HOST:RUN or the file of a bundle"),
            word("b", "B", "the same; without it, the record of A is printed", nargs="?"),
            switch(
                "--all",
                "also print what is equal, and environment variables that only describe the terminal",
            ),
            switch("--exit-code", "exit with 1 if something differs"),
            SSH_CONFIG,
            JSON,
        ),
        usage="distui diff A B [--all] [--json] [--exit-code]",
        examples={
            "diff night night-2": "what differs: plan, arguments, environment, code, versions, numbers",
            "diff night@1 night@2": "a failed attempt and its restart",
            "diff run.tar.gz gpu1:night --all": "a bundle and a run of another machine, also what is the same",
        },
        exits=Exits((FAILED, NO_RUN, UNREACHABLE), "with --exit-code: something differs"),
    ),
    "events": Verb(
        "events:events",
        "print the journal of a run",
        options=(RUN_OR_BUNDLE, FOLLOW, JSON),
        examples={
            "events night": "what happened, from the beginning",
            "events night -f": "the same, then new events as they happen",
            "events night --json": "one JSON object per line",
        },
        exits=READS_A_RUN,
    ),
    "wait": Verb(
        "wait:wait",
        "wait for a run and exit with its outcome",
        options=(
            ONE_RUN,
            value(
                "--until",
                None,
                "state to wait for (default: done); healthy: every rank has completed a step",
                choices=("running", "healthy", "done"),
                default="done",
            ),
            value("--timeout", "SECONDS", "give up after SECONDS (exit code 124)", type=seconds),
            JSON,
        ),
        examples={
            "wait night": "until it has ended",
            "wait night --until healthy --timeout 600": "until every rank has completed a step, 10 minutes at most",
            "wait night --json": "until it has ended, then print its status",
        },
        exits=Exits(
            (FAILED, NO_RUN, UNREACHABLE, LOST, TIMED_OUT),
            "the run failed, or can no longer reach that state",
        ),
    ),
    "watch": Verb(
        "watch:watch",
        "show jobs that distui did not start, read-only",
        options=(word("pid", "PID", "any process of the job", nargs="?", type=int), JSON),
        examples={
            "watch": "jobs on this machine that distui did not start",
            "watch 4711": "the job of this process",
            "watch 4711 --json": "its status, for scripts",
        },
    ),
}

_SHOW = {
    "share": Verb(
        "share:share",
        "let another user or a group of this machine read a run",
        options=(
            ONE_RUN,
            exclusive(
                value("--user", "NAME", "user who may read it"),
                value("--group", "NAME", "group whose members may read it"),
                switch("--off", "end all shares of the run"),
            ),
            value(
                "--for", "TIME", "end after 30m, 2h (default: with the run)", dest="seconds", type=duration
            ),
            JSON,
        ),
        changes_runs=True,
        wants="live",
        examples={
            "share night --user bob": "print the line with which bob opens the cockpit, read-only",
            "share night --group ml --for 2h": "the members of a group, for two hours",
            "share night --off": "end all shares of the run",
        },
        exits=COMMANDS_A_RUN,
    ),
    "serve": Verb(
        "serve:serve",
        "show the cockpit of a run in a browser, read-only",
        options=(
            ONE_RUN,
            value("--port", "N", "port on 127.0.0.1 (default: a free one)", type=int, default=0),
        ),
        changes_runs=True,
        wants="live",
        examples={
            "serve night": "print a line for ssh, and an address that works once",
            "serve night --port 8765": "on this port",
            "serve": "the only live run",
        },
        exits=READS_A_RUN,
    ),
}

_CHANGE = {
    "nccl": Verb(
        "control:nccl",
        "change NCCL_DEBUG of a running job",
        options=(
            ONE_RUN,
            word("level", "LEVEL", "VERSION, WARN, INFO or TRACE"),
            value("--subsys", "A,B", "NCCL_DEBUG_SUBSYS, e.g. COLL,NET", default=""),
            value("--for", "SECONDS", "revert after SECONDS", dest="seconds", type=seconds),
            switch("--restart", "apply by restarting the worker group instead of live"),
            REACHABLE,
            RANKS,
            JSON,
        ),
        changes_runs=True,
        wants="live",
        examples={
            "nccl night INFO --for 30": "for 30 s, without a restart",
            "nccl night TRACE --subsys COLL -r 3": "collectives of rank 3 only",
            "nccl night WARN --restart": "by a restart, if NCCL cannot change it live",
        },
        exits=COMMANDS_A_RUN,
    ),
    "restart": Verb(
        "control:restart",
        "restart the worker group in place",
        options=(
            ONE_RUN,
            CHANGED_VARIABLES,
            values(
                "--env-from-shell",
                "K",
                "set a variable to its value in this shell, which keeps it out of the arguments",
                dest="from_shell",
            ),
            REMOVED_VARIABLES,
            switch(
                "--save-first",
                "save first, as --save-on of the launch defines; restart only if that worked",
            ),
            value("--save-timeout", "SECONDS", "how long the save may take (default: 120)", type=seconds),
            REACHABLE,
            YES,
            JSON,
        ),
        changes_runs=True,
        wants="live",
        examples={
            "restart night": "the worker group in place, after a question",
            "restart night --env NCCL_IB_DISABLE=1 -y": "with a variable changed, without the question",
            "restart night --save-first": "once the script has saved a checkpoint",
        },
        exits=COMMANDS_A_RUN,
    ),
    "signal": Verb(
        "control:send_signal",
        "send a signal to ranks",
        options=(ONE_RUN, word("signal", "SIG", "e.g. USR1"), RANKS, YES, JSON),
        changes_runs=True,
        wants="live",
        examples={
            "signal night USR1": "to every rank",
            "signal night USR1 -r 0": "to rank 0 only",
            "signal night STOP -r 3 -y": "without the question",
        },
        exits=COMMANDS_A_RUN,
    ),
    "stop": Verb(
        "control:stop",
        "stop a run (SIGTERM, then SIGKILL after the grace period)",
        options=(
            ONE_RUN,
            value(
                "--grace",
                "SECONDS",
                "time between SIGTERM and SIGKILL (default: the preset's)",
                type=seconds,
            ),
            YES,
            JSON,
        ),
        changes_runs=True,
        wants="live",
        examples={
            "stop night": "SIGTERM, then SIGKILL after the grace period; asks first",
            "stop night -y": "without the question, as in scripts",
            "stop night --grace 120": "two minutes to save",
        },
        exits=COMMANDS_A_RUN,
    ),
}

_TIDY_UP = {
    "note": Verb(
        "notes:note",
        "write a note on a run, or print its notes",
        options=(
            NAMED_RUN,
            word(
                "text",
                "TEXT",
                'the note (default: print the notes); "" records that none applies any more',
                nargs="*",
                default=[],
            ),
            switch("--clear", "remove all notes of the run"),
            JSON,
        ),
        list_argument="text",
        changes_runs=True,
        examples={
            "note night 'baseline of table 2'": "write a note, which ls and status show",
            "note night": "print its notes",
            "note night --clear": "remove them",
        },
    ),
    "tag": Verb(
        "notes:tag",
        "add tags to a run, remove tags, or print them",
        options=(
            NAMED_RUN,
            word("tags", "+TAG", "add a tag; + may be left out", nargs="*", default=[]),
            values("--remove", "TAG", "remove a tag, as -TAG does"),
            JSON,
        ),
        usage="distui tag RUN [+TAG | -TAG]… [--json]",
        list_argument="tags",
        changes_runs=True,
        examples={
            "tag night +good -bad": "add a tag and remove another",
            "tag night": "print its tags",
            "tag night keep": "prune and retention then keep it",
        },
    ),
    "rm": Verb(
        "removal:rm",
        "remove ended runs: logs, metrics, journal; checkpoints elsewhere stay, except a demo's",
        options=(word("runs", "RUN", RUN_HELP, nargs="+"), YES, JSON),
        changes_runs=True,
        wants="ended",
        examples={
            "rm night": "an ended run with its logs, after a question",
            "rm night night-2 -y": "two, without the question",
            "rm night --json -y": "what was removed, for scripts",
        },
        exits=Exits((FAILED, NO_RUN), NOT_REMOVED),
    ),
    "prune": Verb(
        "removal:prune",
        "remove the ended runs that match all given conditions (at least one), except those tagged keep",
        options=(
            value(
                "--older-than",
                "TIME",
                "only runs that ended at least this long ago: 30d, 12h, 45m",
                type=duration,
            ),
            value("--keep", "N", "spare the newest N ended runs, whatever their outcome", type=count),
            switch("--failed", "only runs that failed or are lost"),
            switch("-n --dry-run", "print what would be removed"),
            YES,
            JSON,
        ),
        changes_runs=True,
        examples={
            "prune --older-than 30d": "ended runs older than 30 days, after a question",
            "prune --failed --keep 20 -n": "print which failed runs would go if the newest 20 runs stayed",
            "prune --failed -y": "all failed and lost runs, without the question",
        },
        exits=Exits((FAILED,), NOT_REMOVED),
    ),
}

_FIND = {
    "diagnose": Verb(
        "diagnose:diagnose",
        "find the root cause in NCCL and PyTorch logs",
        options=(
            word(
                "names",
                "FILE|RUN",
                "log files, archives or directories (- is standard input), a bundle of `distui export`, or a run",
                nargs="*",
            ),
            JSON,
        ),
        usage="distui diagnose [FILE… | BUNDLE | RUN] [--json]",
        examples={
            "diagnose night": "why it hangs, or failed",
            "diagnose slurm-4711.out": "logs of a job that was not distui's",
            "diagnose run.tar.gz --json": "a bundle of `distui export`, for scripts",
        },
        exits=Exits((FAILED, NO_RUN), "a finding of severity error explains the run, or the run is lost"),
    ),
    "dump": Verb(
        "dump:dump",
        "print stacks, flight recorders or memory of the ranks",
        options=(
            ONE_RUN,
            word("what", choices=("stacks", "flight", "memory")),
            RANKS,
            switch("--raw", "print each rank's answer instead of merging the answers"),
            switch("--record", "memory: have torch record allocations for later snapshots"),
            JSON,
        ),
        wants="live",
        examples={
            "dump night stacks": "what every rank is doing; equal stacks once",
            "dump night flight -r 0 -r 3": "the newest collectives of two ranks",
            "dump night memory --json": "memory by rank, for scripts",
        },
        exits=COMMANDS_A_RUN._replace(failure="no rank answered"),
    ),
    "profile": Verb(
        "profile:profile",
        "record steps of ranks with torch.profiler, and sum up the traces",
        options=(
            word(
                "run", "RUN", "name, id or unique prefix of a live run (default: the only one)", nargs="?"
            ),
            RANKS,
            value("--steps", "N", "optimizer steps (default: 3)", type=count, default=3),
            value(
                "--timeout",
                "SECONDS",
                "give up after SECONDS (default: estimated from the run's time per step)",
                type=seconds,
            ),
            value("--out", "DIR", "copy the traces to DIR (default: the run's directory)"),
            JSON,
        ),
        changes_runs=True,
        wants="live",
        examples={
            "profile night": "3 steps of all ranks by torch.profiler: operators, communication, the slowest rank",
            "profile night --ranks 0,5 --steps 10 --out traces": "two ranks, their traces in a directory",
            "profile night --json": "the summary as JSON",
        },
        exits=COMMANDS_A_RUN._replace(failure="no rank has a trace"),
    ),
    "doctor": Verb(
        "doctor:doctor",
        "check that this node (or --hosts) can run a job",
        options=(
            word("run", "RUN", f"{RUN_HELP} (default: this node)", nargs="?"),
            launch_headings("doctor", HOSTS),
            value("--python", "PATH", "interpreter of the training environment"),
            value("--port", "PORT", "rendezvous port on the first node", type=int),
            switch("--no-pairs", "skip the all-reduce between pairs of nodes"),
            value("--size", "MiB", "all-reduce size in MiB (default: 16)", type=count, default=16),
            JSON,
        ),
        examples={
            "doctor": "whether this node can run a job",
            "doctor --hosts gpu1,gpu2": "two nodes, their differences, and the network between",
            "doctor night --json": "the nodes of a run, for scripts",
        },
        exits=Exits((FAILED, NO_RUN), ERROR_FOUND),
    ),
    "export": Verb(
        "export:export",
        "write a run to one file, which `distui replay` opens",
        options=(
            word("run", "RUN"),
            word("file", "FILE", "output file, e.g. run.tar.gz"),
            value(
                "--logs",
                "MiB",
                "size kept of the end of each log, after its first 256 KiB (default: 4)",
                type=count,
                default=4,
            ),
            switch("-f --force", "overwrite FILE"),
            JSON,
        ),
        examples={
            "export night night.tar.gz": "everything about a run in one file",
            "export night night.tar.gz --logs 64 -f": "more of each log, over the file that is there",
            "export night night.tar.gz --json": "the manifest, for scripts",
        },
        exits=READS_A_RUN,
    ),
    "replay": Verb(
        "cockpit:replay",
        "open the record of a run that has ended, or a bundle",
        options=(
            word("run", "FILE|RUN", "a bundle of `distui export`, or a run", nargs="?"),
            READONLY,
        ),
        wants="ended",
        examples={
            "replay night": "the cockpit on the record of a run",
            "replay night.tar.gz": "on a bundle that another person exported",
            "replay night.tar.gz --ascii": "on a terminal without UTF-8",
        },
    ),
}

_PRESETS = {
    "presets": Verb(
        "presets:presets",
        "list, show or create presets; nccl: settings and variables of NCCL",
        options=(
            word("action", nargs="?", choices=("list", "show", "new", "nccl")),
            word("name", "NAME", nargs="?"),
            value("--set", "FIELD=VALUE", "as for launch", action="append", default=[]),
            exclusive(
                value("--base", "NAME", "with new: preset to build on (default: ddp)"),
                value(
                    "--from",
                    "FILE|RUN",
                    "with new: import accelerate's YAML, DeepSpeed's JSON, a SkyPilot task, or the launch of a run",
                    dest="source",
                ),
                switch("--guided", "with new: ask for the values, one question per line"),
            ),
            value(
                "--format",
                "PROGRAM",
                "with show: print the file of accelerate or deepspeed",
                choices=("accelerate", "deepspeed"),
            ),
            JSON,
        ),
        usage="distui presets [list] [--json] | show NAME [--set F=VALUE] [--format accelerate|deepspeed]"
        " | new NAME [--base NAME | --from FILE|RUN | --guided] [--set F=VALUE] | nccl [NAME]",
        examples={
            "presets": "list them",
            "presets show fsdp2 --json": "the fields of one of them, and where each comes from",
            "presets new mine --base ddp": "a preset of your own",
        },
        exits=Exits((FAILED, NO_RUN), "a file of presets cannot be read"),
    ),
    "advise": Verb(
        "advise:advise",
        "estimate which strategies fit into the memory of GPUs",
        options=(
            exclusive(
                value("--params", "N", "the model's parameters: 7B, 350M"),
                value("--script", "PATH[:NAME]", "file (and class or function) that defines the model"),
                required=True,
            ),
            value("--model-args", "K=V,…", "arguments of --script's class or function", default=""),
            value("--python", "PATH", "interpreter of the training environment, for --script"),
            value("--gpus", "COUNTxNAME", "GPUs of one node, as in 8xA100-80GB", required=True),
            value("--nodes", "N", "number of nodes (default: 1)", type=count, default=1),
            value("--gpu-memory", "GB", "memory of each GPU, for models not in the list", type=gigabytes),
            value("--host-memory", "GB", "memory of each node (default: not checked)", type=gigabytes),
            value("--layers", "N", "layers (default: typical for that many parameters)", type=count),
            value("--hidden", "N", "hidden size (default: typical)", type=count),
            value("--vocab", "N", "vocabulary size (default: 32000)", type=count),
            value("--seq", "N", "sequence length (default: 2048)", type=count, default=2048),
            value("--micro-batch", "N", "sequences per GPU (default: 1)", type=count, default=1),
            switch("--recompute", "activation checkpointing of every layer"),
            value(
                "--kind",
                None,
                "what parallelizes the model in the script (default: as --script shows, else unknown)",
                choices=("parallelize", "ddp", "accelerate", "trainer", "deepspeed", "megatron"),
            ),
            value(
                "--format",
                None,
                "format of the script's weights (default: both are shown)",
                choices=("fp32", "bf16"),
            ),
            value(
                "--precision",
                None,
                "format of the computation (default: bf16 if the GPU has it)",
                choices=("bf16", "fp16", "fp32"),
            ),
            exclusive(
                value("--lora", "RANK", "train LoRA adapters of this rank only", type=count),
                value("--qlora", "RANK", "the same with the model in 4 bits", type=count),
            ),
            value("--experts", "N", "experts of each layer, for a mixture of experts", type=count),
            value("--top-k", "N", "experts that a token takes (default: 2)", type=count),
            value("--active", "N", "parameters that a token uses, as in 13B (default: typical)"),
            exclusive(
                value("--on", "PLACE", "SkyPilot's place for the command (default for several nodes: sky)"),
                value("--hosts", "A,B,…", "your own nodes for the command"),
            ),
            JSON,
        ),
        examples={
            "advise --params 7B --gpus 8xA100-80GB": "which strategies fit, and the simplest",
            "advise --params 70B --gpus 8xH100 --nodes 4 --kind trainer": "several nodes, for the HF Trainer",
            "advise --script model.py:GPT --gpus 8xA100-80GB --json": "with the parameters of your class",
        },
        exits=Exits((FAILED,), "no strategy fits"),
    ),
    "trust": Verb(
        "trust:trust",
        "trust a configuration file that other users can write, as it is now",
        options=(
            word("path", "PATH", "file to trust (default: the nearest distui.toml)", nargs="?"),
            exclusive(switch("--list", "list trusted files"), switch("--remove", "stop trusting the file")),
            JSON,
        ),
        usage="distui trust [PATH] | --list | --remove [PATH]",
        examples={
            "trust": "trust the nearest distui.toml, as it is now",
            "trust --list": "list the trusted files, and whether each has changed",
            "trust --remove distui.toml": "stop trusting it",
        },
        exits=Exits(()),
    ),
    "notify": Verb(
        "notify:notify",
        "list or test the channels of notifications, or print what a run has sent",
        options=(
            word("action", nargs="?", choices=("list", "test", "log"), default="list"),
            word(
                "name",
                "CHANNEL|RUN",
                "with test: try only this channel; with log: the run (default: the only live one, else the newest)",
                nargs="?",
            ),
            JSON,
        ),
        usage="distui notify [list | test [CHANNEL] | log [RUN]] [--json]",
        examples={
            "notify": "the configured channels, and the rules",
            "notify test team": "whether a channel works",
            "notify log night": "what a run has sent",
        },
        exits=Exits((FAILED, NO_RUN), "a channel does not work, or the settings have a mistake"),
    ),
}

_MODELS = {
    "mcp": Verb(
        "mcp:mcp",
        "serve the verbs to language models, by MCP on stdin and stdout",
        options=(
            switch("--allow-control", "also start and change runs (default: only read)"),
            switch("--skill", "print SKILL.md, which explains distui to agents, and exit"),
        ),
        examples={
            "mcp": "what an MCP client starts: reads only",
            "mcp --allow-control": "the same, and it may start and change runs",
            "mcp --skill": "SKILL.md, for an agent that has a shell",
        },
        exits=Exits(()),
    ),
}

_CLUSTERS = {
    "candidates": Verb(
        "clusters:candidates",
        "list the nodes that SkyPilot offers, and their prices",
        options=(
            value(
                "--on",
                "INFRA",
                "infrastructure to search (default: all that SkyPilot has enabled)",
                default="sky",
            ),
            value("--nnodes --num-nodes", "N", "nodes (default: 1)"),
            launch_headings("candidates", NODES),
            JSON,
        ),
        examples={
            "candidates --gpus H100:8": "nodes and their prices",
            "candidates --gpus A100:8 --nnodes 4 --spot": "four spot instances",
            "candidates --on aws --gpus H100:8 --json": "of one cloud, for scripts",
        },
        exits=Exits((FAILED,), "no node fits"),
    ),
    "autostop": Verb(
        "clusters:autostop",
        "set the idle time after which a run's cluster is torn down",
        options=(
            word("run", "RUN"),
            word("minutes", "MINUTES|off", "idle minutes, or off", type=minutes),
            JSON,
        ),
        changes_runs=True,
        examples={
            "autostop night 30": "tear the cluster down after 30 idle minutes",
            "autostop night off": "never tear it down automatically",
            "autostop night 30 --json": "for scripts",
        },
        exits=COMMANDS_A_RUN,
    ),
    "down": Verb(
        "clusters:down",
        "tear down the cluster of a run, with everything on it",
        options=(
            ONE_RUN,
            value("-y --yes", "CLUSTER", "the cluster's name: do not ask for it"),
            JSON,
        ),
        changes_runs=True,
        examples={
            "down night": "asks for the cluster's name first",
            "down night --yes night-cluster": "names it already, as in scripts",
            "down night --yes night-cluster --json": "the answer as JSON",
        },
        exits=COMMANDS_A_RUN,
    ),
}

_ITSELF = {
    "settings": Verb(
        "show_settings:settings",
        "show the settings, and where each value comes from",
        options=(switch("--example", "print a settings file with every key as a comment"), JSON),
        examples={
            "settings": "each value, and whether it is yours or distui's",
            "settings --example > ~/.config/distui/settings.toml": "a file to start with",
            "settings --json": "for scripts",
        },
        exits=Exits((FAILED,), "something in the file cannot be used"),
    ),
    "completion": Verb(
        "completion:script",
        "print the completion script of a shell",
        options=(
            word(
                "shell",
                help="shell to complete in (default: that of $SHELL)",
                nargs="?",
                choices=("bash", "zsh", "fish"),
            ),
        ),
        examples={
            "completion bash >> ~/.bash_completion": "runs, presets, hosts and options at Tab in bash",
            "completion zsh > ~/.zfunc/_distui": "in zsh, where ~/.zfunc is in fpath",
            "completion fish > ~/.config/fish/completions/distui.fish": "in fish",
        },
        exits=Exits(()),
    ),
    "man": Verb(
        "man:man",
        "show the man page of distui or of a verb",
        options=(
            word("name", "VERB", nargs="?"),
            value("--dir", "DIR", "write all pages into DIR, as ~/.local/share/man/man1"),
        ),
        examples={
            "man": "distui and its verbs",
            "man launch": "a verb",
            "man --dir ~/.local/share/man/man1": "install all pages, so that `man distui-launch` has them",
        },
        exits=Exits(()),
    ),
    "uninstall": Verb(
        "uninstall:uninstall",
        "list what distui has left on this machine, and remove it",
        options=(
            switch("-n --dry-run", "only list it"),
            switch("--all", "also remove runs, settings, and ~/.distui with working directories"),
            values("--host", "NAME", "do it on this host, via ssh, instead of here"),
            SSH_CONFIG,
            YES,
            JSON,
        ),
        changes_runs=True,
        examples={
            "uninstall -n": "which files there are, and how large they are",
            "uninstall --host gpu1 --host gpu2": "what launches have left on these hosts, after a question",
            "uninstall --all -y": "everything with all runs, without the question",
        },
        exits=Exits((FAILED,), "something could not be removed"),
    ),
}

COCKPIT = Verb(
    "cockpit:open_cockpit", "open the only live run, or the list of runs", options=(), examples={}
)
"""`distui` without a verb."""
GROUPS: Mapping[str, Mapping[str, Verb]] = {
    "start": _START,
    "observe runs": _LOOK,
    "show a run to others": _SHOW,
    "change a run": _CHANGE,
    "tidy up": _TIDY_UP,
    "find what is wrong": _FIND,
    "presets, memory and notifications": _PRESETS,
    "language models": _MODELS,
    "SkyPilot's clusters": _CLUSTERS,
    "distui itself": _ITSELF,
}
"""The verbs under the headings of `distui --help`."""
VERBS: Mapping[str, Verb] = {name: verb for verbs in GROUPS.values() for name, verb in verbs.items()}
"""All verbs by name."""
