"""Command lines that are nearly right: understood where they mean one thing, else a sentence with the right one."""

from __future__ import annotations

import re

import pytest
from each import for_each

from distui.tui import verb_guide, verb_table
from distui.tui.cli import main, parsed, parser
from distui.tui.command_words import WrongUsage, choice_refusal, option_refusal, understood, verb_refusal

FILES = frozenset(["train.py", "jobs/tick", "night"])


def is_file(word: str) -> bool:
    return word in FILES


def read(line: str) -> tuple[str, str | None]:
    words, dashes, rest = line.partition(" -- ")
    own, behind = understood(words.split(), rest.split() if dashes else None, is_file)
    return " ".join(own), None if behind is None else " ".join(behind)


@for_each(
    ("typed", "own", "rest"),
    [
        ("launch ddp train.py", "launch ddp", "train.py"),
        ("launch ddp train.py --lr 1e-3 x", "launch ddp", "train.py --lr 1e-3 x"),
        ("plan ddp --nproc_per_node 2 other.py --lr 3", "plan ddp --nproc-per-node 2", "other.py --lr 3"),
        ("launch ddp --nproc-per 2 --env A=1 train.py", "launch ddp --nproc-per 2 --env A=1", "train.py"),
        ("launch ddp --set a.b=train.py -m pkg.train", "launch ddp --set a.b=train.py -m", "pkg.train"),
        ("launch --name n ddp jobs/tick", "launch --name n ddp", "jobs/tick"),
        ("launch ddp --no-python night", "launch ddp --no-python", "night"),
        ("exec --name x python train.py --lr 3", "exec --name x", "python train.py --lr 3"),
        ("plan ddp --nproc_per_node=2 -- train.py --a_b", "plan ddp --nproc-per-node=2", "train.py --a_b"),
        ("launch ddp --ascii -- train.py", "--ascii launch ddp", "train.py"),
        ("attach night --readonly --ascii", "--ascii --readonly attach night", None),
        ("help logs", "logs --help", None),
        ("help", "--help", None),
        ("--ascii help ls", "--ascii ls --help", None),
        ("logs help", "logs help", None),
        ("lint train.py", "lint train.py", None),
        ("launch --max_restarts 3 ddp -- train.py", "launch --max-restarts 3 ddp", "train.py"),
    ],
)
def test_what_means_one_thing_is_understood(typed: str, own: str, rest: str | None) -> None:
    assert read(typed) == (own, rest)


@for_each(
    ("typed", "words"),
    [
        (
            "launch ddp train.py --nproc-per-node 2",
            "`distui launch ddp -- train.py --nproc-per-node 2` gives it to",
        ),
        (
            "launch ddp train.py --nproc_per_node=2",
            "--nproc_per_node=2 after train.py may be its own option",
        ),
        ("launch train.py", "no PRESET before train.py: `distui launch PRESET -- train.py`"),
        ("launch ddp missing", "`distui launch ddp -- missing` if it is one"),
        (
            "launch ddp train.py -- --lr 1",
            "train.py belongs after --: `distui launch ddp -- train.py --lr 1`",
        ),
        ("exec python -- train.py", "`distui exec -- python train.py`"),
    ],
)
def test_what_may_mean_two_things_is_refused_with_the_right_line(typed: str, words: str) -> None:
    with pytest.raises(WrongUsage, match=re.escape(words)):
        read(typed)


@for_each(
    "typed, words",
    [
        ("--theme dark", "distui has no option --theme: press t in the cockpit"),
        ("--redonly status-x", "distui has no option --redonly: did you mean --readonly?"),
        ("--readonly launc", "there is no verb launc: did you mean `distui launch`?"),
        ("compare a b", "there is no verb compare: did you mean `distui diff`?"),
    ],
)
def test_the_value_of_an_unknown_option_is_no_verb(typed: str, words: str) -> None:
    with pytest.raises(WrongUsage, match=re.escape(words)):
        parsed(typed.split())


def test_a_word_that_is_not_known_gets_the_nearest_one() -> None:
    verbs = parser().verbs
    assert verb_refusal("launc", verbs).startswith("there is no verb launc: did you mean `distui launch`? ")
    assert verb_refusal("zzz", verbs) == "there is no verb zzz: `distui --help` lists the verbs"
    status = verbs["status"].format_help()
    assert "did you mean --json?" in option_refusal(["--jsn"], "distui status", status)
    launch = parser("launch").verbs["launch"].format_help()
    assert "--restarts N is the option" in option_refusal(["3", "--max-restarts"], "distui launch", launch)
    assert "--cluster NAME is the option" in option_refusal(["-c", "train"], "distui launch", launch)
    assert "--autostop MIN is the option" in option_refusal(["-i", "10"], "distui launch", launch)
    assert "--cluster" not in option_refusal(["-c"], "distui status", status)
    assert option_refusal(["b"], "distui ls", "").startswith("b: one word too many; ")
    old = "argument what: invalid choice: 'stack' (choose from 'stacks', 'flight', 'memory')"
    new = "argument --stream: invalid choice: 'x', maybe you meant 'nccl'? (choose from out, err, nccl)"
    assert choice_refusal(old, "distui dump") == (
        "`distui dump` has no stack: did you mean stacks? take stacks, flight or memory"
    )
    assert choice_refusal(new, "distui logs") == "--stream x: take out, err or nccl"
    assert choice_refusal("expected one argument", "distui logs") == ""


@for_each(
    ("line", "sentence"),
    [
        ("launc", "did you mean `distui launch`?"),
        ("dump R foo", "take stacks, flight or memory"),
        ("presets bogus", "take list, show, new or nccl"),
        ("lint", "`distui lint PRESET -- SCRIPT`"),
        ("plan ddp -- /tmp", "/tmp is a directory: give the path of a script in it"),
        ("stop R --yes --readonly", "--readonly allows nothing that changes a run"),
        ("plan ddp --nnodes 2 -- /etc/hostname", "add --hosts A,B or --on sky"),
        ("advise --gpus A100 --params 7", "7: the unit is missing: write 7B or 7M"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(
    line: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(line.split())
    except SystemExit as end:
        code = int(str(end.code))
    told = capsys.readouterr().err
    assert code == 2
    assert sentence in told
    assert told.count("\n") == 1


def test_help_has_every_verb_once_in_groups_and_examples_that_parse() -> None:
    top = parser()
    text = top.format_help()
    for heading, verbs in verb_table.GROUPS.items():
        assert f"\n{heading}:\n" in text
        for name in verbs:
            assert text.count(f"\n  {name} ") == 1
    for line in verb_guide.EXAMPLES:
        words, _, rest = line.partition(" -- ")
        top.parse_args(words.split())
        assert rest.startswith("train.py") == ("launch" in words)
