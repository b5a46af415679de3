"""Names, journals and bundles of others: nothing in them acts on the terminal, fills the disk or ends in a traceback."""

from __future__ import annotations

import gzip
import io
import json
import resource
import tarfile
import tempfile

import pytest

from distui.presets.finding import Finding
from distui.runners.run.model import FindingRaised

from .hostile import EVIL, harmless
from .runs import World
from .written import record, write


def shown(world: World, *words: str) -> str:
    """What a verb writes to a terminal: nothing that acts on it."""
    done = world.distui(*words, env={"TERM": "xterm"}, terminal=True)
    harmless(done.out + done.err)
    return done.out + done.err


def test_names_and_journals_do_not_act_on_the_terminal(world: World) -> None:
    written = write(world, "exec", "--name", "plain", "--", "true")
    path, run, bundle = written.path, written.id, world.work / "it.tgz"
    about = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**about, "name": EVIL}))
    record(written, [FindingRaised(Finding("x", "warning", EVIL))])
    with (path / "journal.jsonl").open("a") as file:
        file.write('{"a":' * 100_000 + "\n")
    for words in (("ls",), ("ls", "--json"), ("events", run), ("events", run, "--json"), ("status", run),
                  ("status", run, "--json"), ("logs", run), ("diagnose", run)):  # fmt: skip
        shown(world, *words)
    lines = world.distui("events", run, "--json").fine().out.splitlines()
    assert EVIL in [json.loads(line)["event"].get("finding", {}).get("text") for line in lines]
    world.distui("export", run, str(bundle)).fine()
    with tarfile.open(bundle) as tar:
        kept = tar.extractfile(f"{run}/journal.jsonl")
        assert kept is not None
        texts = [
            json.loads(line)["event"].get("finding", {}).get("text") for line in kept if b'"seq"' in line
        ]
        assert EVIL in texts, "the bundle has the text as it was"
    for verb in ("status", "events", "logs", "diagnose"):  # by content, not by ending
        for as_json in ((), ("--json",))[: 1 if verb == "logs" else 2]:
            assert "no run" not in shown(world, verb, str(bundle), *as_json)


@pytest.mark.parametrize("folder", ["its own", "that of another run"])
def test_a_run_id_does_not_act_on_the_terminal(world: World, folder: str) -> None:
    """In run.json and the journal, and in the name of the folder, which may be anything but a slash."""
    path = write(world, "exec", "--name", "plain", "--", "true").path
    evil = f"20260101-000000-{EVIL}-00000000"
    for name in ("run.json", "journal.jsonl", "plan.json"):
        text = (path / name).read_text()
        assert path.name in text
        (path / name).write_text(text.replace(json.dumps(path.name)[1:-1], json.dumps(evil)[1:-1]))
    if folder == "its own":
        path = path.rename(path.parent / evil)
    listed = shown(world, "ls")
    assert path.name.rpartition("-")[2] in listed, "a terminal that is too narrow shows the ends of ids"
    assert len(listed.splitlines()) >= 2
    document = json.loads(shown(world, "ls", "--json"))
    assert path.name in [each["run"] for each in document]
    for words in (("status",), ("status", "--json"), ("events",), ("events", "--json"), ("logs",), ("diagnose",),
                  ("stop", "--yes"), ("export", "out.tar.gz")):  # fmt: skip
        shown(world, words[0], path.name, *words[1:])
    shown(world, "status", f"{EVIL}{EVIL}")


def test_a_file_to_import_does_not_act_on_the_terminal(world: World) -> None:
    evil = json.dumps(EVIL)[1:-1].replace("\\udb40\\udc41", "\\U000e0041")  # YAML knows no pairs
    (world.work / "theirs.yaml").write_text(
        f'distributed_type: FSDP\n"k{evil}": 3\nmixed_precision: "m{evil}"\n'
    )
    said = shown(world, "presets", "new", "mine", "--from", "theirs.yaml")
    assert "accelerate has no key k" in said
    assert "accelerate has no mixed_precision m" in said
    shown(world, "presets", "show", "mine")


def test_a_bomb_is_refused_before_it_is_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = world.work / "bomb.tar.gz"
    with gzip.open(bomb, "wb") as packed, tarfile.open(fileobj=packed, mode="w|") as tar:
        for number in range(2):
            info = tarfile.TarInfo(f"20260101-000000-x-00000000/node-0/attempt-001/rank-{number}.out")
            info.size = 80 << 20
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    folder = world.work / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    most = 1 << 20
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))  # a file of more could not be written
    try:
        said = world.distui("status", str(bomb)).refused(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "500 times its size" in said
    assert list(folder.iterdir()) == []
