"""A bundle of a run on several nodes: the logs of all that answer, what a hub kept of others, and what is missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from patience import HANG_S

from distui.runners.reports.bundle_files import Manifest
from distui.runners.reports.bundle_reader import opened, unpack
from distui.runners.run import run_directories
from distui.tui.cli import main

from .site import Site, Whole, until

pytestmark = pytest.mark.real


@pytest.fixture
def whole(site: Site) -> Whole:
    """Two nodes whose ranks run."""
    made = Whole(site, site.script())
    made.start()
    assert main(["wait", made.record.run, "--until", "running", "--timeout", str(HANG_S)]) == 0
    curves = [part.path / "metrics/1s.jsonl" for part in made.parts]
    logs = [part.path / f"node-{n}/attempt-001/rank-{n}.out" for n, part in enumerate(made.parts)]
    assert until(lambda: all(path.is_file() for path in curves))
    assert until(lambda: all("begins\n" in path.read_text() for path in logs))
    return made


def exported(whole: Whole, name: str) -> tuple[Manifest, Path]:
    """A bundle of the run, unpacked."""
    path, folder = whole.site.root / name, whole.site.root / f"{name}-out"
    assert main(["export", whole.record.run, str(path)]) == 0
    manifest = unpack(path, folder)
    return manifest, folder / manifest.run


def test_every_node_is_in_it_and_a_node_that_is_gone_is_said_to_be_missing(
    whole: Whole, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, folder = exported(whole, "live.tar.gz")
    assert manifest.live
    for node in (0, 1):
        out = (folder / f"node-{node}/attempt-001/rank-{node}.out").read_text()
        assert out.startswith(f"node {node} begins\n")
        assert (folder / f"node-{node}/metrics/1s.jsonl").is_file()
        assert (folder / f"node-{node}/agent.log").is_file()
    assert len(json.loads((folder / "status.json").read_text())["nodes"]) == 2
    assert manifest.missing == ["no hook answers in ranks 0, 1: no stack, no flight recorder"]

    assert main(["stop", whole.record.run, "--yes", "--grace", "2"]) == 0
    shutil.rmtree(whole.parts[1].path)
    capsys.readouterr()
    manifest, folder = exported(whole, "after.tar.gz")
    assert not manifest.live
    assert "the curves of node 1 are on other machines" in manifest.missing
    kept = folder / "node-1/attempt-001/rank-1.out"
    assert kept.is_file() or any(text.startswith("node-1/") for text in manifest.missing)
    assert "not in it: the curves of node 1" in capsys.readouterr().out

    with opened(whole.site.root / "live.tar.gz") as told:
        entry = run_directories.resolve(None)
        assert (entry.record.run, entry.record.kind) == (told.run, "local")
        assert run_directories.ended(entry)
        capsys.readouterr()
        assert main(["logs", told.run]) == 0
        said = capsys.readouterr().out
        assert "node 0 begins" in said
        assert "node 1 begins" in said
    assert run_directories.at(whole.entry.path) is not None, "the user's own runs are back"
