"""What is built and what works once it is installed: an empty or half-empty wheel would build without a complaint."""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import HANG_S

import distui
from distui.runners.run import machine
from distui.runners.run.packages import EXTRAS, install_extra
from distui.tui.cli import main

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("presets", "runners", "tui")
VERSION = distui.__version__
PACKAGE = ROOT / ".editable" / "distui"
NEEDED = (
    "distui/__init__.py",
    "distui/__main__.py",
    "distui/api.py",
    "distui/py.typed",
    "distui/presets/builtin/ddp.toml",
    "distui/presets/examples/chargpt.py",
    "distui/presets/known_names.toml",
    "distui/presets/lint/lint_rules.toml",
    "distui/presets/nccl.toml",
    "distui/runners/diagnosis/formats.toml",
    "distui/runners/diagnosis/places.toml",
    "distui/runners/inrank/known_causes.ini",
    "distui/runners/inrank/launch.py",
    "distui/runners/inrank/shim/torchrun",
    "distui/runners/inrank/site/sitecustomize.py",
    "distui/runners/logs/grep.py",
    "distui/runners/logs/levels.toml",
    "distui/tui/actions.toml",
    "distui/tui/app.tcss",
    "distui/tui/mcp/SKILL.md",
)
"""Files that no import would miss at build time."""


def run(*words: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Stdout of a command that succeeds."""
    done = subprocess.run(
        words, cwd=cwd, env=env, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def build(source: Path, target: str, into: Path) -> Path:
    """Build one artefact without a network and without touching the source."""
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", into, cwd=source)
    (built,) = into.iterdir()
    return built


def in_tree() -> set[str]:
    """Files of the package and its rooms as a wheel should hold them."""
    own = {f"distui/{path.name}" for path in PACKAGE.iterdir() if path.is_file()}
    return own | {
        f"distui/{path.relative_to(ROOT).as_posix()}"
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_messages_name_the_packages_of_an_extra() -> None:
    """Not distui[EXTRA]: pip would take that from an index, where distui may be another's."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, requirements in EXTRAS.items():
        assert [each.partition(";")[0] for each in extras[extra]] == [*requirements]
    assert install_extra("mcp", "/env/bin/python") == "`/env/bin/python -m pip install 'mcp>=2.1,<3'`"
    texts = [*ROOT.glob("docs/*.md"), *(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))]
    assert [path for path in texts if "install 'distui[" in path.read_text(encoding="utf-8")] == []


def test_the_install_page_has_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = (ROOT / "docs/install.md").read_text().partition("### Extras")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == extras.keys()


def test_who_cites_the_program_names_its_version() -> None:
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    base = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build(ROOT, "sdist", base / "built")) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
        archive.extractall(base / "unpacked")
    return base / "unpacked" / f"distui-{VERSION}"


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as an index would build it: from the source distribution."""
    return build(sdist, "wheel", tmp_path_factory.mktemp("wheel") / "built")


@pytest.mark.real
def test_a_wheel_holds_the_rooms_and_nothing_else(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    """Also one that is built from the tree, without a source distribution."""
    with zipfile.ZipFile(wheel) as archive:
        held = {item for item in archive.namelist() if not item.endswith("/")}
    about = f"distui-{VERSION}.dist-info/"
    assert {item for item in held if not item.startswith(about)} == in_tree()
    assert set(NEEDED) <= held
    assert {item.removeprefix(about) for item in held if item.startswith(about)} == {
        "METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"
    }  # fmt: skip
    with zipfile.ZipFile(build(ROOT, "wheel", tmp_path / "direct")) as direct:
        assert {item for item in direct.namelist() if not item.endswith("/")} == held
    kept = {path.relative_to(sdist).as_posix() for path in sdist.rglob("*") if path.is_file()}
    tested = ("Makefile", "docs/index.md", "tests/test_packaging.py")
    assert kept >= {"README.md", "LICENSE", "CHANGELOG.md", *tested}, "a source distribution can be tested"
    assert {path.name for path in (sdist / PACKAGE.relative_to(ROOT)).iterdir()} == {
        path.name for path in PACKAGE.iterdir() if path.is_file()
    }, "without the links"


@pytest.mark.real
def test_the_page_of_a_package_index_has_no_broken_picture(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        about = email.message_from_bytes(archive.read(f"distui-{VERSION}.dist-info/METADATA"))
    assert about["Author"] == "The distui authors"
    extras = about.get_all("Requires-Dist", [])
    assert "torch<3,>=2.7; extra == 'torch'" in extras, "a user's torch stays as it is"
    page = about.get_payload()
    assert isinstance(page, str)
    assert about["Description-Content-Type"] == "text/markdown"
    assert not re.findall(r"\]\((?!https?:|#)[^)]*\)", page), "nothing points to files of a checkout"
    assert "[1 Overview]2 Ranks 3 Logs" in page, "the first screen is there as text"
    assert "make demo" in page


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin/ of an environment that has the wheel; what the wheel needs is borrowed from this one."""
    place = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--no-deps", "--no-index", "--quiet", wheel)
    (site,) = place.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    assert run(python, "-c", "import distui.tui as room; print(room.__path__[0])").startswith(str(place))
    return place / "bin"


@pytest.fixture
def clean(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment in which nothing points to this checkout, nor to the runs of whoever tests."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_"))
    }
    with tempfile.TemporaryDirectory(prefix="dt-") as short:  # a unix socket's path holds 108 bytes
        yield kept | {
            "HOME": str(tmp_path),
            "XDG_STATE_HOME": f"{short}/state",
            "XDG_CONFIG_HOME": f"{short}/config",
            "DISTUI_SOCKET_DIR": f"{short}/s",
        }


@pytest.mark.real
def test_the_installed_command_plans_and_runs(
    installed: Path, clean: dict[str, str], tmp_path: Path
) -> None:
    assert run(installed / "distui", "--version", env=clean) == f"distui {VERSION}\n"
    assert run(installed / "python", "-m", "distui", "--version", env=clean) == f"distui {VERSION}\n"
    (tmp_path / "x.py").write_text("print('hello')\n")
    words = ("plan", "ddp", "--nproc-per-node", "2", "--json", "--", "x.py", "--lr", "1e-3")
    plan = json.loads(run(installed / "distui", *words, cwd=tmp_path, env=clean))
    assert plan["command"] == ["x.py", "--lr", "1e-3"]
    assert plan["nproc_per_node"] == 2
    assert plan["python"] == str(installed / "python")
    distui = installed / "distui"
    said = ("exec", "--name", "hello", "--detach", "--", "sh", "-c", "echo it ran")
    run(distui, *said, cwd=tmp_path, env=clean)
    run(distui, "wait", "hello", "--timeout", f"{HANG_S:g}", env=clean)
    assert json.loads(run(distui, "status", "hello", "--json", env=clean))["state"] == "succeeded"
    assert "it ran" in run(distui, "logs", "hello", env=clean)


@pytest.fixture(scope="module")
def torchless(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin/ of an environment that has the wheel and all that it needs, and no torch."""
    place = tmp_path_factory.mktemp("torchless") / "venv"
    venv.create(place, with_pip=False)
    (site,) = place.glob("lib/python*/site-packages")
    (own,) = installed.parent.glob("lib/python*/site-packages")
    for folder in (own, Path(sysconfig.get_path("purelib"))):
        for path in folder.iterdir():
            heavy = path.name.lower().startswith(
                ("torch", "numpy", "functorch", "__editable__", "_editable")
            )
            if not heavy and path.suffix != ".pth" and not (site / path.name).exists():
                (site / path.name).symlink_to(path)
    script = (installed / "distui").read_text().split("\n", 1)[1]
    (place / "bin" / "distui").write_text(f"#!{place}/bin/python\n{script}")
    (place / "bin" / "distui").chmod(0o755)
    return place / "bin"


@pytest.mark.real
def test_the_demo_works_without_torch(torchless: Path, clean: dict[str, str]) -> None:
    """The first command after an install: it says that nothing is trained, and the exact command that mends it."""
    env = {**clean, "PATH": str(torchless)}
    distui = str(torchless / "distui")
    done = subprocess.run([distui, "demo", "--detach", "--steps", "40"], env=env, capture_output=True, text=True,
                          timeout=HANG_S, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "trains nothing" in done.stderr
    assert f"install --python {torchless}/python3 torch" in done.stderr or (
        f"{torchless}/python3 -m pip install torch" in done.stderr
    )
    run(distui, "wait", "demo", "--timeout", f"{HANG_S:g}", env=env)
    told = run(distui, "logs", "demo", env=env)
    assert "step 40 loss" in told
    losses = [float(line.split("loss ")[1].split()[0]) for line in told.splitlines() if " loss " in line]
    assert losses == sorted(losses, reverse=True)
    status = json.loads(run(distui, "status", "demo", "--json", env=env))
    assert (status["state"], status["plan"]["launcher"]) == ("succeeded", "command")
    assert status["ranks"][0]["step"] is None, "no optimizer, no step"


def test_without_torch_a_named_python_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(machine, "torch_version", lambda python: None)
    assert main(["demo", "--detach", "--python", sys.executable]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "has no torch: install it there (`" in sentence
