"""The commands of README.md and of docs/install.md: each exists with its options, and works as it is printed.

A newcomer types those of the blocks in an empty directory, without a home of their own, from the clone's environment
and from a wheel under each Python that is here.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyte
import pytest
from matrix.environments import NotHereError, interpreter
from patience import HANG_S
from pictures.terminal import cut, new_screen
from test_packaging import build

from distui.runners.run.commands import Restart
from distui.tui.cli import parser, split_rest
from distui.tui.rows import command_line as colon

from .runs import DISTUI, World, contents
from .screen import Screen

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
INSTALL = (ROOT / "docs" / "install.md").read_text()
RECORDING = ROOT / "docs" / "pictures" / "hang.cast"
SPANS = {
    "distui demo --hang-after 4",
    "distui help",
    "make pictures",
    "pip install .",
    ". .venv/bin/activate",
}
"""Between backquotes in README's text."""
SCREENS = ("distui launch ", "distui attach")


def block(page: str, heading: str) -> list[str]:
    """The commands of the blocks below a heading, without their comments."""
    section = re.split(r"\n#+ ", page.partition(f"# {heading}\n")[2])[0]
    text = "".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL))
    return [line.partition("  #")[0].strip() for line in text.splitlines()]


FIRST_RUN = block(README, "The first five minutes")
COMPLETION = block(INSTALL, "Completion and man pages")


def test_every_command_is_in_a_block_that_is_run_or_known() -> None:
    blocks = "".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL))
    lines = [line.partition("  #")[0].strip() for line in blocks.splitlines()]
    assert lines == ["make demo", "make test", *FIRST_RUN]
    text = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    spans = re.findall(r"`((?:distui|make|pip|\.) [^`\n]+)`", text)
    assert {*spans} == SPANS
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test", "pictures"} <= {*targets}
    assert len(README.splitlines()) <= 120


def test_the_install_page_has_the_same_first_run() -> None:
    again = block(INSTALL, "A first run")
    assert again == FIRST_RUN[: len(again)]


def test_every_option_exists() -> None:
    removal = [line for line in block(INSTALL, "Remove") if line.startswith("distui")]
    for text in [*FIRST_RUN, *removal, "distui demo --hang-after 4"]:
        words, rest = split_rest(shlex.split(text.partition(" >")[0])[1:])
        options = parser().parse_args(words)
        assert rest is None or (options.declaration and options.declaration.has_command), text


def first_seen(
    events: list[tuple[float, str, str]], size: tuple[int, int], texts: tuple[str, ...]
) -> list[float]:
    """Return the seconds after which the screen showed each text, the next one not before the one in front of it."""
    screen = new_screen(*size)
    stream, held, left, found = pyte.Stream(screen), "", list(texts), []
    for at, _, written in events:
        text, held = cut(held + written)
        stream.feed(text)
        while left and left[0] in "\n".join(screen.display):
            left.pop(0)
            found.append(at)
    assert not left, f"never shown: {left}"
    return found


def test_the_recording_is_twenty_seconds_of_its_command() -> None:
    head, *events = map(json.loads, RECORDING.read_text().splitlines())
    assert f"`{head['command']}`" in README
    assert 19.5 <= events[-1][0] <= 20.5
    assert "\ufffd" not in "".join(written for _, _, written in events)
    verdict = "rank 5 on sim-1 waits for an event or a condition at checkpoint.py:47"
    story = (
        "ms/step",
        "▲ blocked",
        verdict,
        "Stacks of 16 ranks",
        "Restart 16 ranks",
        "attempt 2",
        "ms/step",
    )
    trains, hangs, named, *_ = first_seen(events, (head["width"], head["height"]), story)
    assert trains < 4
    assert 4 < hangs < 6
    assert 14 < named < 16
    assert RECORDING.with_suffix(".gif").stat().st_size <= 1_500_000


def test_the_cockpits_own_command_is_what_the_shells_does() -> None:
    (typed,) = re.findall(r"`:(restart [^`]+)`", README)
    asked = colon.parse(typed, lambda: "1").command
    assert isinstance(asked, Restart)
    assert asked.env == {"OMP_NUM_THREADS": "4"}


@pytest.mark.torch
def test_before_anything_costs(world: World) -> None:
    def typed(line: str) -> str:
        return world.distui(*shlex.split(line)[1:]).fine().out

    world.env.pop("OMP_NUM_THREADS")
    write, advise, _, lint, plan, *_ = FIRST_RUN
    world.script("train.py", typed(write.partition(" >")[0]))
    before = contents(world.root)
    assert "launch fsdp2-zero2" in typed(advise)
    assert "error" not in typed(lint)
    printed = typed(plan)
    for words in ("--nproc-per-node 2", "train.py --lr 3e-4", "OMP_NUM_THREADS=1", "parallelize"):
        assert words in printed, printed
    assert contents(world.root) == before, "looking writes nothing"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel") / "built")


@pytest.fixture
def newcomer() -> Iterator[World]:
    """Somebody with an empty home and an empty directory, whose training environment is that of the tests."""
    world = World()
    for variable, folder in (("XDG_STATE_HOME", world.state), ("XDG_CONFIG_HOME", world.config)):
        del world.env[variable]
        folder.rmdir()
    world.env["VIRTUAL_ENV"] = sys.prefix
    yield world
    world.close()


def installed(wheel: Path, version: str, place: Path) -> str:
    """The command of a fresh environment that has the wheel; skips if the machine has no such Python."""
    try:
        python = interpreter(version)
    except NotHereError as error:
        pytest.skip(str(error))
    subprocess.run([python, "-m", "venv", place], check=True)
    subprocess.run([place / "bin" / "python", "-m", "pip", "install", "--quiet", wheel], check=True)
    return str(place / "bin" / "distui")


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.parametrize("version", ["", "3.11", "3.12", "3.13"], ids=lambda version: version or "clone")
def test_the_commands_work_as_printed(
    version: str, newcomer: World, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    newcomer.program = DISTUI
    if version:
        newcomer.program = installed(request.getfixturevalue("wheel"), version, tmp_path / "venv")
    newcomer.env["PATH"] = f"{Path(newcomer.program).parent}:{newcomer.env['PATH']}"
    for line in FIRST_RUN:
        print(line)
        if line.startswith(SCREENS):
            look(newcomer, line)
        else:
            shell(newcomer, line)
    shell(newcomer, "distui stop --yes")
    for line in COMPLETION:
        zsh = "distui completion zsh" in line
        if not zsh or shutil.which("zsh"):
            shell(newcomer, line, "zsh" if zsh else "bash")
    places = shell(newcomer, "distui uninstall --dry-run")
    for path in (
        ".local/state/distui",
        ".config/fish/completions/distui.fish",
        ".local/share/man/man1/distui.1",
    ):
        assert f"{newcomer.root}/{path} " in places


def look(newcomer: World, line: str) -> None:
    """Type a command that opens the cockpit, see a training rank, and leave."""
    with closing(Screen(["bash", "-c", line], newcomer.env, newcomer.work)) as screen:
        screen.until(lambda text: re.search(r"step \d", text))
        screen.press("q")
        assert screen.ended() == 0


def shell(newcomer: World, line: str, program: str = "bash") -> str:
    """Type a command in a shell; what it printed."""
    words = [program, "-c", line]
    if program == "zsh":
        words = [program, "-fc", f"autoload -U compinit; compinit -u -D; {line}"]
    done = subprocess.run(
        words, env=newcomer.env, cwd=newcomer.work, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, (line, done.stderr)
    return done.stdout
