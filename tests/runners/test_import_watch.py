"""Modules that are changed right after they were loaded."""

from __future__ import annotations

import importlib
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from distui.runners.inrank import import_watch
from distui.runners.inrank.import_watch import when_imported


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path), set(sys.modules)
    yield
    sys.meta_path[:] = before[0]
    for name in set(sys.modules) - before[1]:
        del sys.modules[name]


def write(folder: Path, **modules: str) -> None:
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()


def _double(module: ModuleType) -> None:
    theirs = module.save
    module.save = lambda: theirs() * 2  # type: ignore[attr-defined]


def test_a_name_that_is_taken_at_the_import_is_the_changed_one(tmp_path: Path) -> None:
    write(
        tmp_path,
        watched_a="def save():\n    return 21\n",
        script_a="from watched_a import save\ngot = save()\n",
    )
    when_imported("watched_a", _double)
    assert importlib.import_module("script_a").got == 42


def test_a_module_that_is_there_is_changed_at_once(tmp_path: Path) -> None:
    write(tmp_path, watched_b="def save():\n    return 21\n")
    module = importlib.import_module("watched_b")
    when_imported("watched_b", _double)
    assert module.save() == 42


def test_a_mistake_never_reaches_the_script(tmp_path: Path) -> None:
    write(tmp_path, watched_c="value = 1\n")
    acted: list[str] = []

    def fails(module: ModuleType) -> None:
        raise AttributeError(module.nothing)

    when_imported("watched_c", fails)
    when_imported("watched_c", lambda module: acted.append(module.__name__))
    assert importlib.import_module("watched_c").value == 1
    assert acted == ["watched_c"]


def test_the_error_of_a_module_and_a_missing_module_stay_what_they_are(tmp_path: Path) -> None:
    write(tmp_path, watched_d="raise KeyError('mine')\n")
    for name in ("watched_d", "watched_missing"):
        when_imported(name, _double)
    with pytest.raises(KeyError, match="mine"):
        importlib.import_module("watched_d")
    with pytest.raises(ModuleNotFoundError, match="watched_missing"):
        importlib.import_module("watched_missing")


def test_other_finders_are_asked_as_before(tmp_path: Path) -> None:
    """A package may come from a finder of its own, as an editable install does."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    write(folder, watched_e="def save():\n    return 1\n")

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> object:
            from importlib.util import spec_from_file_location

            return spec_from_file_location(name, folder / f"{name}.py") if name == "watched_e" else None

    sys.meta_path.append(Finder)  # type: ignore[arg-type]
    when_imported("watched_e", _double)
    assert importlib.import_module("watched_e").save() == 2
    assert import_watch._watch in sys.meta_path


def test_a_loader_of_several_modules_changes_only_the_watched_one(tmp_path: Path) -> None:
    """All modules of a zip file have one."""
    with zipfile.ZipFile(tmp_path / "modules.zip", "w") as archive:
        archive.writestr("watched_f.py", "import other_f\ndef save():\n    return 21\n")
        archive.writestr("other_f.py", "def save():\n    return 1\n")
    sys.path.insert(0, str(tmp_path / "modules.zip"))  # the fixture's monkeypatch restores it
    when_imported("watched_f", _double)
    assert importlib.import_module("watched_f").save() == 42
    assert importlib.import_module("other_f").save() == 1
