"""Options that a language model writes: only those of a list reach a verb that reads, however they are spelled."""

from __future__ import annotations

import pytest
from each import for_each
from hypothesis import given
from hypothesis import strategies as st

from distui.presets.request import OPTIONS, options
from distui.tui.cli import parsed
from distui.tui.mcp.answers import Refused
from distui.tui.mcp.launch_words import READING, option_words

WITHHELD = {"--python", "--ssh-config", "--hostfile", "--task", "--try", "--json"}
"""They execute a program, open a file, start runs, or change what is printed."""
HARMLESS = {
    "--nnodes",
    "--num-nodes",
    "--nproc-per-node",
    "--on",
    "--set",
    "--adopt",
    "--port",
    "-m",
    "--module",
    "--no-python",
    "--name",
    "--env",
    "--nccl",
    "--nccl-preset",
    "--env-on",
    "--no-hook",
    "--signal",
    "--grace",
    "--save-on",
    "--notify",
    "--log-cap",
    "--restarts",
    "--hosts",
    "--head-addr",
    "--gpus",
    "--cpus",
    "--memory",
    "--spot",
    "--region",
    "--image",
    "--network-tier",
    "--any-of",
    "--cluster",
    "--workdir",
    "--setup",
    "--mount",
    "--autostop",
    "--managed",
    "--retry-until-up",
}
"""Somebody has looked at what each does in `plan` and `lint`."""
FLAGS = [flag for option in OPTIONS for flag in option.flags]
SPELLED = st.sampled_from(FLAGS).flatmap(
    lambda flag: st.sampled_from(
        [
            flag,
            flag.replace("-", "_").replace("__", "--", 1),
            flag[:-1],
            flag[:5],
            f"{flag}=x",
            flag.upper(),
        ]
    )
)


def test_every_option_is_on_the_list_or_withheld_by_name() -> None:
    """A new option of the table has to be judged before a model may use it."""
    of_plan = {flag for option in options("plan") for flag in option.flags}
    assert {flag for option in READING for flag in option.flags} == HARMLESS
    assert of_plan - HARMLESS == WITHHELD
    assert of_plan >= HARMLESS


@for_each(
    ("words", "why"),
    [
        (["--ssh_config", "/x"], "--ssh-config can execute"), (["--ssh-config=/x"], "--ssh-config can execute"),
        (["--ssh_config=/x"], "--ssh-config can execute"), (["--python", "/x"], "--python can execute"),
        (["--hostfile=/etc/shadow"], "--hostfile can execute a program or open a file"),
        (["--task", "x.yaml"], "--task can execute"), (["--nnodes", "2", "--python=/x"], "--python can execute"),
        (["--no-hook", "--ssh_config", "/x"], "--ssh-config can execute"),
        (["--ssh-conf", "/x"], "did you mean --ssh-config? Write options in full"), (["--pyth=/x"], "in full"),
        (["--ssh-_config", "/x"], "no option"), (["--PYTHON", "/x"], "no option"), (["--", "stop"], "no option '--'"),
        (["--help"], "no option"), (["-h"], "no option"), (["--readonly"], "no option"), (["stop"], "no option"),
        (["--nnodes"], "--nnodes N|MIN:MAX"), (["--no-hook=1"], "takes no value"), ([""], "no option ''"),
        (["--nnodes", "2", "3"], "no option '3'"),
    ],
)  # fmt: skip
def test_what_may_not_be_used_is_a_sentence(words: list[str], why: str) -> None:
    for verb in ("plan", "lint"):
        with pytest.raises(Refused) as error:
            option_words(verb, words, control=False)
        assert why.lower() in str(error.value).lower()


@for_each(
    ("words", "written"),
    [
        (["--nnodes", "2"], ["--nnodes=2"]), (["--nproc_per_node", "2"], ["--nproc-per-node=2"]), (["-m"], ["-m"]),
        (["--name", "--ssh-config=/x"], ["--name=--ssh-config=/x"]), (["--set", "--python"], ["--set=--python"]),
        (["--set", "a=1", "--set=b=2", "--no-hook"], ["--set=a=1", "--set=b=2", "--no-hook"]), ([], []),
    ],
)  # fmt: skip
def test_what_may_be_used_is_written_in_full(words: list[str], written: list[str]) -> None:
    assert option_words("plan", words, control=False) == written


@given(
    st.lists(SPELLED | st.sampled_from(["x", "--", "-", "--python", "=", "--name=--python=/x"]), max_size=5)
)
def test_no_words_make_the_verb_use_what_is_withheld(words: list[str]) -> None:
    try:
        written = option_words("plan", words, control=False)
    except Refused:
        return
    try:
        options = parsed(["--readonly", "plan", "ddp", "--json", *written])
    except SystemExit:  # the verb refuses a value
        return
    assert (options.python, options.ssh_config, options.hostfile, options.task) == (None, None, None, None)
    assert options.preset == "ddp"


def test_a_server_with_control_takes_all_options_of_the_verb() -> None:
    words = ["--python", "/x/python", "--ssh-config", "f", "--detach"]
    assert option_words("launch", words, control=True) == [
        "--python=/x/python",
        "--ssh-config=f",
        "--detach",
    ]
