"""Completion in real shells: verbs, options, runs, presets and hosts at Tab, quickly, and no heavy package for it."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import argcomplete.finders
import pytest

from distui.tui.cli import main, parser

from .runs import DISTUI, World
from .screen import Screen

NAMES = ("night", "night-2", "morning")
SHELLS: dict[str, tuple[list[str], str]] = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(distui completion bash)"'),
    "zsh": (["zsh", "-f", "-i"], 'autoload -U compinit; compinit -u -D; eval "$(distui completion zsh)"'),
    "fish": (["fish", "--no-config", "-i"], "distui completion fish | source"),
}
"""How each starts without anybody's files, and what its user types once."""
AT_TAB = {
    "distui sta": ["status"],
    "distui launch ddp tr": ["train.py"],
    "distui ls --sort st": ["state", "step"],
    "distui ls --columns name,st": ["name,state", "name,step"],
    "distui launch ddp --nproc-per-node 2 tr": ["train.py"],
    "distui launch ddp --detach tr": ["train.py"],
    "distui plan ddp --nnodes 2 -n --workdir da": ["data/"],
    "distui launch ddp --nproc-per-node 2 --det": ["--detach"],
    "distui launch ddp --notify ter": ["terminal"],
    "distui launch ddp --notify of": ["off"],
    "distui launch ddp --notify terminal:hang,stra": ["terminal:hang,straggler"],
    "distui notify test ": ["terminal", "desktop"],
    "distui notify log ni": ["night-2", "night"],
    "distui ls sta": ["state:"],
    "distui ls ag": ["age\\<", "age\\>"],
    "distui ls state:failed pres": ["preset:"],
    "distui ls state:fai": ["state:failed"],
    "distui ls state:hu": ["state:hung"],
    "distui ls preset:min": ["preset:mine"],
    "distui ls tag:": ["tag:good", "tag:v2"],
    "distui tag night +": ["+good", "+v2"],
    "distui tag night go": ["good"],
    "distui tag night --remove v": ["v2"],
    "distui help sta": ["status"],
    "distui logs ": ["morning", "night-2", "night"],
    "distui logs ni": ["night-2", "night"],
    "distui stop ": ["night-2", "night"],
    "distui rm ": ["morning"],
    "distui note mor": ["morning"],
    "distui tag mor": ["morning"],
    "distui stop --gr": ["--grace"],
    "distui logs night --stream n": ["nccl"],
    "distui launch mi": ["mine"],
    "distui presets show min": ["mine"],
    "distui launch ddp --nccl IB_TIM": ["IB_TIMEOUT="],
    "distui launch ddp --set strategy.stat": ["strategy.static_graph="],
    "distui launch ddp --hosts gpu1,gp": ["gpu1,gpu2", "gpu1,gpu3"],
    "distui attach --host gpu": ["gpu1", "gpu2", "gpu3"],
    "distui launch ddp -- tr": ["train.py"],
    "distui launch ddp train.py da": ["data/"],
    "distui launch ddp -- train.py --py": [],
    "distui exec python tr": ["train.py"],
    "distui plan ddp --workdir ": ["data/"],
    "distui dump night fl": ["flight"],
    "distui signal night US": ["USR1", "USR2"],
    "distui metrics night gpu.ut": ["gpu.util"],
    "distui completion z": ["zsh"],
    "distui nosuch ": [],
    "distui wait night --timeout ": [],
    "distui ' ": [],
}


@pytest.fixture(scope="module")
def somebody() -> Iterator[World]:
    world = World()
    for number, name in enumerate(NAMES):
        (world.runs / f"2026010{number}-120000-{name}-0123456{number}").mkdir(parents=True)
    (world.runs / "20260102-120000-morning-01234562" / "end.json").write_text("{}")
    (world.runs / "20260101-120000-night-2-01234561" / "notes.jsonl").write_text(
        '{"add": ["good", "v2"]}\n{"add"'
    )
    (world.runs / "start.lock").touch()
    ssh = world.root / ".ssh"
    ssh.mkdir()
    (ssh / "config").write_text("Host gpu1 gpu2\n  User me\nHost *.example !bad\n")
    (ssh / "known_hosts").write_text("gpu3,10.0.0.3 ssh-ed25519 AAAA\n|1|hashed= ssh-ed25519 AAAA\n")
    presets = world.config / "distui" / "presets"
    presets.mkdir(parents=True)
    (presets / "mine.toml").write_text('base = "ddp"\n')
    world.script("train.py", "")
    (world.work / "data").mkdir()
    world.env["PATH"] = f"{Path(DISTUI).parent}:{world.env['PATH']}"
    yield world
    world.close()


def at_tab(world: World, line: str) -> list[str]:
    """What bash would be answered for a line with the cursor at its end."""
    answer = world.work / "answer"
    asked = {
        "_ARGCOMPLETE": "1", "_ARGCOMPLETE_SHELL": "bash", "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9",
        "_ARGCOMPLETE_COMP_WORDBREAKS": " \t\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
    }  # fmt: skip
    with world.shell([], asked, world.work, io.StringIO()), pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0, line
    words = answer.read_text().split("\n")
    answer.unlink()
    return [word for word in words if word]


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    finder = argcomplete.finders.CompletionFinder
    monkeypatch.setattr(finder, "_init_debug_stream", lambda self: None)  # descriptor 9 is not its own here
    monkeypatch.setattr(argcomplete, "autocomplete", partial(finder(), exit_method=sys.exit))


@pytest.mark.usefixtures("in_process")
def test_what_may_stand_at_the_cursor(somebody: World) -> None:
    for line, words in AT_TAB.items():
        assert at_tab(somebody, line) == words, line


@pytest.mark.usefixtures("in_process")
def test_no_file_is_offered_where_only_a_run_may_stand(somebody: World) -> None:
    """There is train.py, and no run begins so."""
    of_runs = [
        name
        for name, verb in parser().verbs.items()
        if any(action.metavar == "RUN" and not action.option_strings for action in verb._actions)
    ]
    assert {"stop", "logs", "rm"} - {*of_runs} == {"logs"}, "logs also takes a bundle"
    assert {verb: found for verb in of_runs if (found := at_tab(somebody, f"distui {verb} tra"))} == {}


@pytest.mark.real
def test_real_shells_complete(somebody: World) -> None:
    """Those that are installed, of which bash always is one."""
    for argv, begin in SHELLS.values():
        if shutil.which(argv[0]) is not None:
            check_shell(somebody, argv, begin)


def check_shell(somebody: World, argv: list[str], begin: str) -> None:
    """What is completed at Tab in a shell."""
    screen = Screen([*argv], {**somebody.env, "PS1": "> ", "PROMPT": "> "}, somebody.work, 100, 30)
    try:
        screen.until(lambda text: text.strip())
        screen.press(f"{begin}; echo re''ady", "enter")
        screen.until(lambda text: "\nready" in text)
        for typed, whole in (
            ("distui sta", " status"),
            ("morn", " status morning"),
            ("--js", " status morning --json"),
        ):
            screen.press(typed, "tab")
            screen.until(f"distui{whole}")
        screen.press("\x15", "distui launch min", "tab")
        screen.until("distui launch mine")
        screen.press(" --nproc-per-node 2 tr", "tab")
        screen.until("2 train.py")
        for typed, whole in (("distui ls state:fai", "state:failed"), ("distui ls tag:go", "tag:good")):
            screen.press("\x15", typed, "tab")
            screen.until(f"distui ls {whole}")
        screen.press("\x15", "distui launch mine --notify termi", "tab")
        screen.until("--notify terminal")
        screen.press("\x15", "distui stop tra", "tab", "#")
        screen.until("distui stop tra#")  # no live run is called so, and train.py is a file
        screen.press("\x15", "exit", "enter")
        screen.ended()
    finally:
        screen.close()


def test_bash_offers_no_files_where_no_run_fits(somebody: World) -> None:
    """Its own completion would, as for `distui stop` where no run is live."""
    script = somebody.distui("completion", "bash").fine().out
    assert "complete -o nospace -F " in script


def test_a_shell_is_taken_from_the_environment_or_asked_for(somebody: World) -> None:
    assert somebody.distui("completion", env={"SHELL": "/usr/bin/fish"}).fine().out.startswith("function")
    somebody.distui("completion", env={"SHELL": "/bin/tcsh"}).refused(2, "Which shell?")
    somebody.distui("completion", "ksh").refused(2, "take bash, zsh or fish")


@pytest.mark.real
def test_a_run_name_loads_nothing_heavy(somebody: World) -> None:
    for number in range(1000):
        (somebody.runs / f"20250101-120000-old{number}-{number:08x}").mkdir()
    code = f"""
import os, sys
os._exit = lambda status: (sys.stdout.write(repr(sorted(sys.modules))), sys.stdout.flush())
from distui.tui.cli import main
sys.argv = [{DISTUI!r}]
main()
"""
    somebody.env |= {"_ARGCOMPLETE": "1", "COMP_LINE": "distui logs old99", "COMP_POINT": "17",
                     "_ARGCOMPLETE_STDOUT_FILENAME": str(somebody.work / "answer")}  # fmt: skip
    loaded = eval(somebody.python(code).fine().out)
    assert not {"textual", "rich", "msgspec", "psutil", "asyncio", "torch"} & set(loaded)
    assert len((somebody.work / "answer").read_text().split("\v")) == 11
