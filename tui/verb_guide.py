"""What `--help`, the man pages and docs/cli.md add to the options of a verb: three examples, and its exit codes. Pure.

A test refuses a verb that is not in the table, and an example that the parser does not take.
"""

from __future__ import annotations

from typing import NamedTuple

MEANINGS = {
    0: "done",
    1: "the run, the command or the check failed",
    2: "wrong usage, or something needed is missing",
    3: "no such run",
    4: "agent or node unreachable",
    5: "a command was sent but its answer was lost (`distui status` shows its effect)",
    6: "`wait`: the run is lost",
    124: "`wait --timeout` expired",
    130: "interrupted",
    141: "the reader of stdout has gone",
}
"""Every exit code."""


class VerbGuide(NamedTuple):
    """Of one verb."""

    examples: tuple[tuple[str, str], ...]
    """Command lines behind `distui`, and what each does."""
    codes: tuple[int, ...] = (3,)
    """Exit codes beside 0, 2, 130 and 141, which every verb may give."""
    failed: str = MEANINGS[1]
    """What 1 means here."""


_STARTED = "the training failed"
_READ = (3, 4)
_ASKED = (1, 3, 4, 5)

GUIDES: dict[str, VerbGuide] = {
    "launch": VerbGuide(
        (
            ("launch ddp -- train.py --lr 1e-3", "on all GPUs of this machine, then the cockpit"),
            ("launch fsdp2 --hosts gpu1,gpu2 --name night -- train.py", "on two machines, via ssh"),
            ("launch ddp --on sky --gpus H100:8 --spot -- train.py", "on the cheapest such node of a cloud"),
        ),
        (1,), _STARTED,
    ),
    "plan": VerbGuide(
        (
            ("plan ddp -- train.py", "command line, environment and files of every rank"),
            ("plan fsdp2 --nnodes 2 --hosts gpu1,gpu2 --json -- train.py", "the plan as JSON"),
            ("plan ddp --set strategy.static_graph=true -- train.py", "with a field of the preset changed"),
        ),
        (),
    ),
    "lint": VerbGuide(
        (
            ("lint ddp --nproc-per-node 8 -- train.py", "a launch before it"),
            ("lint job.sh ds_config.json", "files of a launch that is not distui's"),
            ("lint -- torchrun --nproc-per-node 8 train.py", "a command"),
        ),
        (1,), "an error is among the findings",
    ),
    "exec": VerbGuide(
        (
            ("exec -- torchrun --nproc-per-node 8 train.py", "any command, as it is"),
            ("exec --name night --restarts 3 -- bash train.sh", "restarted after failures"),
            ("exec --detach --json -- accelerate launch train.py", "start it and return"),
        ),
        (1,), _STARTED,
    ),
    "demo": VerbGuide(
        (
            ("demo", "a small training on 2 ranks, and the cockpit"),
            ("demo --preset fsdp2 --nproc-per-node 4", "under another preset"),
            ("demo --hang", "a rank that hangs after 100 steps, to see it detected"),
        ),
        (1,), _STARTED,
    ),
    "rerun": VerbGuide(
        (
            ("rerun night", "the same launch again, as a new run"),
            ("rerun night --set strategy.bucket_cap_mb=50 --env NCCL_DEBUG=INFO", "with a field and a variable changed"),
            ("rerun night --name night-2 -n", "print the plan of one that may live beside it"),
        ),
        (1, 3), _STARTED,
    ),
    "ls": VerbGuide(
        (
            ("ls", "the runs of this machine, newest first"),
            ("ls state:failed preset:fsdp2 'age<2d' --sort size", "those that fit all words, the largest first"),
            ("ls -w --host gpu1 --host me@gpu2", "those of other machines, via ssh, again and again"),
        ),
        (4,),
    ),
    "attach": VerbGuide(
        (
            ("attach", "the only live run, else the newest"),
            ("attach night --readonly", "where nothing can be changed by mistake"),
            ("attach night --host gpu1", "a run of another machine, via ssh"),
        ),
        _READ,
    ),
    "status": VerbGuide(
        (
            ("status", "state, ranks, GPUs and findings of the newest run"),
            ("status night -w", "again and again, until it has ended"),
            ("status night --json", "for scripts"),
        ),
        _READ,
    ),
    "logs": VerbGuide(
        (
            ("logs night -f -t", "all ranks as they write, with times"),
            ("logs night -r 3 -n 50", "the last 50 lines of rank 3"),
            ("logs night --since 10m --grep 'loss|error'", "lines of the last 10 minutes that match"),
        ),
        (1, 3, 4), "a log cannot be read",
    ),
    "metrics": VerbGuide(
        (
            ("metrics night", "newest, smallest, mean and largest value of everything"),
            ("metrics night gpu.util rank.step_s --last 10m", "two of them, of the last 10 minutes"),
            ("metrics night --list", "which there are"),
        ),
        (1, 3, 4), "there are no values in the window",
    ),
    "diff": VerbGuide(
        (
            ("diff night night-2", "what differs: plan, arguments, environment, code, versions, numbers"),
            ("diff night@1 night@2", "a failed attempt and its restart"),
            ("diff run.tar.gz gpu1:night --all", "a bundle and a run of another machine, also what is the same"),
        ),
        (1, 3, 4), "with --exit-code: something differs",
    ),
    "events": VerbGuide(
        (
            ("events night", "what happened, from the beginning"),
            ("events night -f", "and what comes"),
            ("events night --json", "an object a line"),
        ),
        _READ,
    ),
    "wait": VerbGuide(
        (
            ("wait night", "until it has ended"),
            ("wait night --until healthy --timeout 600", "until every rank has made a step, 10 minutes at most"),
            ("wait night --json", "and print its status then"),
        ),
        (1, 3, 4, 6, 124), "the run failed, or cannot come there any more",
    ),
    "watch": VerbGuide(
        (
            ("watch", "jobs on this machine that distui did not start"),
            ("watch 4711", "the job of this process"),
            ("watch 4711 --json", "its status, for scripts"),
        ),
    ),
    "nccl": VerbGuide(
        (
            ("nccl night INFO --for 30", "for 30 s, without a restart"),
            ("nccl night TRACE --subsys COLL -r 3", "collectives of rank 3 alone"),
            ("nccl night WARN --restart", "where NCCL cannot change it live"),
        ),
        _ASKED,
    ),
    "restart": VerbGuide(
        (
            ("restart night", "the worker group in place, after a question"),
            ("restart night --env NCCL_IB_DISABLE=1 -y", "with a variable changed, without the question"),
            ("restart night --save-first", "once the script has saved a checkpoint"),
        ),
        _ASKED,
    ),
    "signal": VerbGuide(
        (
            ("signal night USR1", "to every rank"),
            ("signal night USR1 -r 0", "to rank 0 alone"),
            ("signal night STOP -r 3 -y", "without the question"),
        ),
        _ASKED,
    ),
    "stop": VerbGuide(
        (
            ("stop night", "SIGTERM, then SIGKILL after the grace period; asks first"),
            ("stop night -y", "without the question, as in scripts"),
            ("stop night --grace 120", "two minutes to save"),
        ),
        _ASKED,
    ),
    "note": VerbGuide(
        (
            ("note night 'baseline of table 2'", "write a note, which ls and status show"),
            ("note night", "print its notes"),
            ("note night --clear", "remove them"),
        ),
    ),
    "tag": VerbGuide(
        (
            ("tag night +good -bad", "add a tag and take another away"),
            ("tag night", "print its tags"),
            ("tag night keep", "prune and retention then leave it"),
        ),
    ),
    "rm": VerbGuide(
        (
            ("rm night", "an ended run with its logs, after a question"),
            ("rm night night-2 -y", "two, without the question"),
            ("rm night --json -y", "what was removed, for scripts"),
        ),
        (1, 3), "a run could not be removed",
    ),
    "prune": VerbGuide(
        (
            ("prune --older-than 30d", "ended runs older than 30 days, after a question"),
            ("prune --keep 20 -n", "what would go if the newest 20 stayed"),
            ("prune --failed -y", "what failed or is lost, without the question"),
        ),
        (1,), "a run could not be removed",
    ),
    "diagnose": VerbGuide(
        (
            ("diagnose night", "why it hangs, or failed"),
            ("diagnose slurm-4711.out", "logs of a job that was not distui's"),
            ("diagnose run.tar.gz --json", "a bundle of `distui export`, for scripts"),
        ),
        (1, 3), "the cause is an error, or the run is lost",
    ),
    "dump": VerbGuide(
        (
            ("dump night stacks", "what every rank is doing; equal stacks once"),
            ("dump night flight -r 0 -r 3", "the newest collectives of two ranks"),
            ("dump night memory --out dumps", "memory by rank, and each answer in a file"),
        ),
        (1, 3, 4, 5), "no rank answered",
    ),
    "profile": VerbGuide(
        (
            ("profile night", "3 steps of all ranks by torch.profiler: operators, communication, the slowest rank"),
            ("profile night --ranks 0,5 --steps 10 --out traces", "two ranks, their traces in a directory"),
            ("profile traces --json", "traces that are there, as JSON"),
        ),
        (1, 3, 4, 5), "no rank has a trace",
    ),
    "doctor": VerbGuide(
        (
            ("doctor", "whether this node can run a job"),
            ("doctor --hosts gpu1,gpu2", "two nodes, their differences, and the network between"),
            ("doctor night --json", "the nodes of a run, for scripts"),
        ),
        (1, 3), "an error is among the findings",
    ),
    "export": VerbGuide(
        (
            ("export night night.tar.gz", "everything about a run in one file"),
            ("export night night.tar.gz --logs 64 -f", "more of each log, over the file that is there"),
            ("export night night.tar.gz --with-traces --json", "also traces of `profile`; the manifest, for scripts"),
        ),
        _READ,
    ),
    "replay": VerbGuide(
        (
            ("replay night", "the cockpit on the record of a run"),
            ("replay night.tar.gz", "on a bundle that another person exported"),
            ("replay night.tar.gz --ascii", "on a terminal without UTF-8"),
        ),
    ),
    "presets": VerbGuide(
        (
            ("presets", "list them"),
            ("presets show fsdp2 --json", "the fields of one of them, and where each comes from"),
            ("presets new mine --base ddp", "a preset of your own"),
        ),
        (1, 3), "a file of presets cannot be read",
    ),
    "advise": VerbGuide(
        (
            ("advise --params 7B --gpus 8xA100-80GB", "which strategies fit, and the simplest"),
            ("advise --params 70B --gpus 8xH100 --nodes 4 --recompute", "several nodes, with checkpointing"),
            ("advise --script model.py:GPT --gpus 8xA100-80GB --json", "with the parameters of your class"),
        ),
        (1,), "no strategy fits",
    ),
    "trust": VerbGuide(
        (
            ("trust", "the nearest distui.toml, as it is now"),
            ("trust --list", "what is trusted, and whether it has changed"),
            ("trust --remove distui.toml", "no longer"),
        ),
        (),
    ),
    "notify": VerbGuide(
        (
            ("notify", "the ways that are configured, and the rules"),
            ("notify test team", "whether a way works"),
            ("notify log night", "what a run has sent"),
        ),
        (1, 3), "a way does not work, or the settings have a mistake",
    ),
    "mcp": VerbGuide(
        (
            ("mcp", "what an MCP client starts: reads only"),
            ("mcp --allow-control", "the same, and it may start and change runs"),
            ("mcp --skill", "SKILL.md, for an agent that has a shell"),
        ),
        (),
    ),
    "candidates": VerbGuide(
        (
            ("candidates --gpus H100:8", "nodes and their prices"),
            ("candidates --gpus A100:8 --nnodes 4 --spot", "four spot instances"),
            ("candidates --on aws --gpus H100:8 --json", "of one cloud, for scripts"),
        ),
        (1,), "no node fits",
    ),
    "autostop": VerbGuide(
        (
            ("autostop night 30", "tear the cluster down after 30 idle minutes"),
            ("autostop night off", "never"),
            ("autostop night 30 --json", "for scripts"),
        ),
        _ASKED,
    ),
    "down": VerbGuide(
        (
            ("down night", "asks for the cluster's name first"),
            ("down night --yes night-cluster", "names it already, as in scripts"),
            ("down night --yes night-cluster --json", "the answer as JSON"),
        ),
        _ASKED,
    ),
    "settings": VerbGuide(
        (
            ("settings", "each value, and whether it is yours or distui's"),
            ("settings --example > ~/.config/distui/settings.toml", "a file to begin with"),
            ("settings --json", "for scripts"),
        ),
        (1,), "something in the file cannot be used",
    ),
    "man": VerbGuide(
        (
            ("man", "distui and its verbs"),
            ("man launch", "a verb"),
            ("man --dir ~/.local/share/man/man1", "install all pages, so that `man distui-launch` has them"),
        ),
        (),
    ),
    "completion": VerbGuide(
        (
            ("completion bash >> ~/.bash_completion", "runs, presets, hosts and options at Tab in bash"),
            ("completion zsh > ~/.zfunc/_distui", "in zsh, where ~/.zfunc is in fpath"),
            ("completion fish > ~/.config/fish/completions/distui.fish", "in fish"),
        ),
        (),
    ),
}  # fmt: skip


def exit_codes(verb: str) -> dict[int, str]:
    """The codes that a verb may give, and what each means; of an unlisted verb, all codes."""
    guide = GUIDES.get(verb)
    if guide is None:
        return MEANINGS
    mine = {0, 2, *guide.codes}
    return {code: guide.failed if code == 1 else text for code, text in MEANINGS.items() if code in mine}


def guide_text(verb: str) -> str:
    """The examples and the exit codes of a verb, as its `--help` ends."""
    guide = GUIDES.get(verb)
    lines: list[str] = []
    if guide is not None:
        width = min(max(len(line) for line, _ in guide.examples), 52)
        lines += ["examples:"]
        lines += [f"  distui {line:<{width}}  {about}" for line, about in guide.examples]
        lines += [""]
    codes = "\n".join(f"  {code:<4} {text}" for code, text in exit_codes(verb).items())
    return "\n".join([*lines, "exit codes:", codes, ""])
