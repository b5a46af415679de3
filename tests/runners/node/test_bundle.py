"""The bundle: built from what is installed, unpacked where there is nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from patience import HANG_S

from distui import __version__
from distui.runners.node import boot, package, wheels
from distui.runners.run.errors import RunError


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of this environment's own packages: pip is told to ask no index."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.delenv("PIP_FIND_LINKS", raising=False)
        return package.build(tmp_path_factory.mktemp("bundles"))


@pytest.fixture
def made(built: Path, tmp_path: Path) -> Path:
    """A copy of it beside what it was made of, for a test to do with as it likes."""
    cache = tmp_path / "cache"
    shutil.copytree(built.parent, cache)
    return cache / built.name


def node(made: Path, home: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`node.sh WORDS…` where there is nothing but a system and an empty HOME."""
    home.mkdir(exist_ok=True)
    return subprocess.run(
        ["sh", str(made / "node.sh"), *words],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin", **env},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip


@pytest.mark.real
def test_what_a_bundle_holds_and_when_it_is_made_anew(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip makes it once; the rest is read and copied."""
    holds(made)
    monkeypatch.setattr(subprocess, "run", None)
    assert package.build(made.parent) == made, "a second one is the first, and nothing is started for it"
    monkeypatch.undo()
    without_a_cache(made, tmp_path, monkeypatch)
    monkeypatch.undo()
    laid(made, tmp_path, monkeypatch)
    monkeypatch.undo()
    changed(made, monkeypatch)


def holds(made: Path) -> None:
    assert sorted(path.name for path in made.iterdir()) == [
        *("boot.py", "bridge.py", "distui.zip", "node.sh", "own_folders.py", "screens", "wheels")
    ]
    assert os.access(made / "node.sh", os.X_OK)
    with zipfile.ZipFile(made / "distui.zip") as archive:
        names = set(archive.namelist())
    assert {"distui/runners/agent/__main__.py", "distui/runners/inrank/site/sitecustomize.py"} <= names
    assert {"distui/presets/nccl.toml", "distui/runners/node/job.py"} <= names
    assert "distui/__init__.py" in names, "an installed distui on a node must not replace the bundle's"
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests/")]
    there = {path.name.partition("-")[0] for path in (made / "wheels").iterdir()}
    assert there == {"msgspec", "psutil", "nvidia_ml_py"}


def changed(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = dict(package._files())
    files["distui/runners/node/boot.py"] += b"# other\n"
    monkeypatch.setattr(package, "_files", lambda: iter(files.items()))
    other = package.build(made.parent)
    assert other != made
    assert (other / "boot.py").read_bytes().endswith(b"# other\n")
    assert made.is_dir()


def without_a_cache(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    other = tmp_path / "other"
    monkeypatch.setattr(boot, "homes", lambda: [str(blocked / "cache"), str(other)])
    assert boot.library(str(made)).startswith(str(other))
    monkeypatch.setattr(boot, "homes", lambda: [str(blocked / "cache")])
    with pytest.raises(OSError, match="Not a directory"):
        boot.library(str(made))


def laid(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "cache_dir", lambda: made.parent)
    for _ in range(2):  # a hub that was started again does it again
        package.lay(made.name, tmp_path / "cargo")
    laid = tmp_path / "cargo" / made.name
    assert [path.name for path in (tmp_path / "cargo").iterdir()] == [made.name]
    for path in made.rglob("*"):
        assert (laid / path.relative_to(made)).stat().st_mode == path.stat().st_mode
    assert (laid / "distui.zip").samefile(made / "distui.zip")
    with pytest.raises(RunError, match="distui has changed since: launch the run again"):
        package.lay("bundle-of-before", tmp_path / "cargo")


@pytest.mark.real
def test_it_unpacks_where_there_is_nothing_but_a_python_and_runs_from_there(
    made: Path, tmp_path: Path
) -> None:
    done = node(made, tmp_path / "home", "probe", DISTUI_PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["distui"] == __version__
    assert told["cores"] == len(os.sched_getaffinity(0))
    assert told["home"] == str(tmp_path / "home")
    libraries = list((tmp_path / "home" / ".cache" / "distui").glob("lib-*"))
    assert len(libraries) == 1
    assert (libraries[0] / "msgspec" / "__init__.py").exists()
    assert os.access(libraries[0] / "distui/runners/inrank/shim/torchrun", os.X_OK)
    bare(libraries[0])


def bare(library: Path) -> None:
    """No site-packages at all: everything that an agent imports comes out of the bundle."""
    code = "import distui.runners.agent.__main__, distui.runners.node.job, psutil, pynvml; print(psutil.__file__)"
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", code],
        env={"PYTHONPATH": str(library)}, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(library))


@pytest.mark.real
def test_all_is_its_users_alone_whatever_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is downloaded, packed, put together and unpacked; what a node starts has the user's umask."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    before = os.umask(0)
    try:
        made = package.build(tmp_path / "cache" / "bundles")
        done = node(made, tmp_path / "home", "probe", DISTUI_PYTHON=sys.executable)
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    entries = [*(tmp_path / "cache").rglob("*"), *(tmp_path / "home").rglob("*")]
    assert len(entries) > 500
    assert [f"{path} {path.stat().st_mode:o}" for path in entries if path.stat().st_mode & 0o077] == []
    assert os.access(next((tmp_path / "home").glob("**/shim/torchrun")), os.X_OK)


def test_a_cache_that_pythonpath_cannot_name_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTHONPATH splits at colons, and a relative folder is another one for each process: XDG says to ignore it."""
    mine, temporary = "/mine/.cache/distui", f"/tmp/distui-{os.getuid()}"
    monkeypatch.setenv("HOME", "/mine")
    found = {}
    for given in ("", "/fast/cache", "cache", "./cache", "~/fast", "/a:b"):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        found[given] = boot.homes()
    assert found == {
        "": [mine, temporary],
        "/fast/cache": ["/fast/cache/distui", temporary],
        "cache": [mine, temporary],
        "./cache": [mine, temporary],
        "~/fast": ["/mine/fast/distui", temporary],
        "/a:b": [temporary],
    }


@pytest.mark.real
def test_no_python_that_will_do_and_wrong_words(made: Path, tmp_path: Path) -> None:
    for words in ([], ["fly"], ["job"], ["start", "x"]):
        done = node(made, tmp_path / "home", *words, DISTUI_PYTHON=sys.executable)
        assert done.returncode == 2
        assert done.stderr.startswith("usage: node.sh job RUN |")
    made.with_name(f"python-{os.uname().nodename}").unlink()
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "dirname", "uname", "cat", "awk"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    old = tools / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    script = (
        (made / "node.sh").read_text().replace("/usr/local /usr", "")
    )  # where this host's own Pythons are
    (made / "node.sh").write_text(script.replace("/opt/conda", ""))
    done = subprocess.run(
        [str(tools / "sh"), str(made / "node.sh"), "probe"],
        env={"HOME": str(tmp_path), "PATH": str(tools)}, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "has no Python 3.11 to 3.14 for distui's agent" in done.stderr


@pytest.mark.real
def test_downloads_are_kept_and_those_that_failed_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index without the wheels of one kind of node; pip is the one that Python brings."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    here = wheels.NodeKind(f"{sys.version_info[0]}.{sys.version_info[1]}", os.uname().machine)
    other = wheels.NodeKind("3.14", "sparc")
    monkeypatch.setattr(wheels, "NODE_KINDS", [here, other])
    index, cache = tmp_path / "index", tmp_path / "cache"
    index.mkdir()
    for name in wheels.NEEDED:
        wheels.pack_installed(name, index)
    for wheel in index.glob("*-linux_*"):
        wheel.rename(index / wheel.name.replace("-linux_", "-manylinux2014_"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    told: list[tuple[int, int]] = []
    made = package.build(cache, lambda done, of: told.append((done, of)))
    assert told == [(0, 2), (2, 2)]
    assert wheels.unserved(cache) == [other]
    assert (
        "could be downloaded for Python 3.14 on sparc (ERROR: No matching distribution"
        in wheels.why_unserved(cache)
    )
    assert sorted(wheel.name for wheel in (made / "wheels").iterdir()) == sorted(
        wheel.name for wheel in index.iterdir()
    )


def test_a_failed_download_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [wheels.NodeKind(f"3.{minor}", "sparc") for minor in range(11, 31)]
    failing = {kinds[1]: "no msgspec", kinds[2]: "pip did not end in 60 s", kinds[3]: "no msgspec"}
    tried: list[wheels.NodeKind] = []

    def download(folder: Path, node: wheels.NodeKind) -> str:
        tried.append(node)
        return failing.get(node, "")

    monkeypatch.setattr(wheels, "NODE_KINDS", kinds)
    monkeypatch.setattr(wheels, "_download", download)
    wheels.gather(tmp_path / "cache", wheels.no_report)
    assert sorted(tried) == kinds
    assert "(no msgspec; pip did not end in 60 s): nodes of these kinds" in wheels.why_unserved(
        tmp_path / "cache"
    )


@pytest.mark.real
def test_what_a_power_cut_left_is_made_again(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    damaged = [
        made / "distui.zip",
        *(made.parent / "screens").glob("rich-*"),
        *made.parent.glob("*/own/psutil-*"),
    ]
    assert len(damaged) == 3
    for archive in damaged:
        archive.unlink()
        archive.touch()
    assert package.build(made.parent) == made
    assert all(zipfile.is_zipfile(archive) for archive in damaged)
    assert all(zipfile.is_zipfile(wheel) for wheel in made.glob("*/*.whl"))


def test_a_plan_names_a_bundle_that_nobody_has_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert package.name().startswith("bundle-")
    assert not list(tmp_path.iterdir())


@pytest.mark.real
def test_a_node_names_the_wheels_that_its_python_misses(made: Path, tmp_path: Path) -> None:
    for wheel in (made / "wheels").glob("msgspec-*"):
        wheel.unlink()
    done = node(made, tmp_path / "home", "probe", DISTUI_PYTHON=sys.executable)
    machine, python = boot.tags()
    assert done.returncode == 2
    assert f"the bundle has no msgspec-*-{python}-*_{machine}.whl for it: launch again" in done.stderr


def test_a_cache_of_bundles_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        RunError, match=r"the bundle for the nodes cannot be written to .*: free space or set XDG"
    ):
        package.build(tmp_path / "file" / "cache")


def test_what_fits_this_interpreter() -> None:
    machine, python = boot.tags()
    assert boot.fits("nvidia_ml_py-13.0-py3-none-any.whl")
    assert boot.fits(f"psutil-7.2-cp36-abi3-manylinux2014_{machine}.manylinux_2_28_{machine}.whl")
    assert boot.fits(f"msgspec-0.22-{python}-{python}-manylinux_2_28_{machine}.whl")
    assert not boot.fits(f"msgspec-0.22-cp310-cp310-manylinux_2_28_{machine}.whl")
    assert not boot.fits(f"psutil-7.2-cp399-abi3-manylinux_2_28_{machine}.whl")
    assert not boot.fits(f"msgspec-0.22-{python}-{python}-manylinux_2_28_sparc.whl")
    assert not boot.fits("README")
    assert not boot.fits("x.whl")


@pytest.mark.parametrize(("at", "entry", "byte"), [(45, None, 0xFF), (8, 10, 99), (6, 8, 1)])
def test_a_bundle_that_was_damaged_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, entry: int | None, byte: int
) -> None:
    """In its data, its kind of compression, its flag for encryption: each is another exception of zipfile."""
    here = tmp_path / "bundle-0123456789ab"
    (here / "wheels").mkdir(parents=True)
    with zipfile.ZipFile(here / "distui.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("distui/x.py", "x = 1\n" * 5000)
    data = bytearray((here / "distui.zip").read_bytes())
    data[at] = byte
    if entry is None:
        data[at : at + 15] = bytes([byte]) * 15
    else:
        data[data.rfind(b"PK\1\2") + entry] = byte
    (here / "distui.zip").write_bytes(data)
    monkeypatch.setattr(boot, "homes", lambda: [str(tmp_path / "home")])
    with pytest.raises(OSError, match="launch again"):
        boot.library(str(here))
    assert os.listdir(tmp_path / "home") == []


def test_the_words_of_the_requirements_are_those_of_the_package() -> None:
    assert [word.partition("<")[0].partition(">")[0] for word in wheels.requirements()] == [
        "msgspec",
        "nvidia-ml-py",
        "psutil",
    ]
