"""`distui export`, and what another person, elsewhere, sees of a run."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distui.runners.run.model import Outcome

from .cockpit import Cockpit, in_cockpit
from .hostile import harmless
from .runs import DISTUI, Run, World, until
from .written import Attempt, write

SECRET = "hf_" + "q7" * 12
OUT = f"token {SECRET} WANDB_API_KEY=abcdef123\n"
ERR = "h:1:2 [0] NCCL WARN Too many open files\n"
NOISY = f"""
import sys
print({OUT!r}, end="", flush=True)
print({ERR!r}, end="", file=sys.stderr, flush=True)
for number in range(10):
    print("line", number, "x" * 100)
sys.stdout.flush()
sys.exit(3)
"""


def noisy(world: World, lines: int = 10) -> Run:
    """A run that has failed, and whose log holds secrets."""
    out = OUT + "".join(f"line {number} {'x' * 100}\n" for number in range(lines))
    words = ("exec", "--name", "noisy", "--env", f"MY_SECRET={SECRET}", "--restarts", "0", "--", "false")
    return write(world, *words, attempts=[Attempt(Outcome.FAILED, out, ERR, exit_code=3)])


def contents(path: Path) -> dict[str, bytes]:
    """The files of a bundle, by their names below the run's."""
    with tarfile.open(path) as bundle:
        found = {}
        for member in bundle:
            file = bundle.extractfile(member)
            assert file is not None
            found[member.name.partition("/")[2]] = file.read()
    return found


@pytest.mark.real
def test_a_bundle_holds_the_run_and_no_secret(world: World) -> None:
    run = world.execute(NOISY, "--env", f"MY_SECRET={SECRET}", "--restarts", "0", name="noisy")
    assert run.wait() == 1
    said = run.distui("export", "out.tar.gz").fine().out
    path = world.work / "out.tar.gz"
    assert path.stat().st_mode & 0o077 == 0
    assert "secrets masked" in said
    assert "`distui replay out.tar.gz` opens it" in said
    files = contents(path)
    wanted = {
        "plan.json", "run.json", "journal.jsonl", "status.json", "findings.json", "diagnose.json", "agent.log",
        "runner.log", "node-0/attempt-001/rank-0.out", "node-0/attempt-001/rank-0.err", "MANIFEST.json",
        "metrics/1s.jsonl",
    }  # fmt: skip
    assert wanted <= set(files)
    assert not [name for name, data in files.items() if SECRET.encode() in data or b"abcdef123" in data]
    assert b"token *** WANDB_API_KEY=***" in files["node-0/attempt-001/rank-0.out"]
    assert json.loads(files["status.json"])["state"] == "failed"
    assert json.loads(files["diagnose.json"])["first_cause"]["id"] == "too-many-files"
    manifest = json.loads(files["MANIFEST.json"])
    assert manifest["run"] == run.id
    assert (manifest["live"], manifest["masked"] >= 2) == (False, True)
    assert {one["name"] for one in manifest["files"]} == set(files) - {"MANIFEST.json"}
    assert not [name for name in os.listdir(world.work) if name.endswith(".tmp")]

    run.distui("export", "out.tar.gz").refused(2, "out.tar.gz is there already", "--force")
    run.distui("export", "no/where.tar.gz").refused(2, "cannot be written")
    run.distui("export", "out.tar.gz", "--force", "--json").fine().json()


def test_a_bundle_holds_no_header_that_a_rank_printed(world: World) -> None:
    """In no file, however it was written: in a log, a traceback, the first cause that is taken from it."""
    values = [f"{at}x{os.urandom(12).hex()}" for at in range(9)]
    body = json.dumps({"authorization": "bearer " + values[7]})
    out = [
        f"Authorization: Bearer {values[0]}", str({"authorization": "bearer " + values[2], "accept": "*/*"}),
        json.dumps({"Authorization": "Bearer " + values[4]}),
        str([(b"authorization", b"Bearer " + values[5].encode())]),
        f"curl -H 'Authorization: Bearer {values[6]}' https://h/x", json.dumps({"body": body}),
    ]  # fmt: skip
    sent = {"url": "https://h/x", "headers": {"Authorization": "Bearer " + values[3]}}
    last = f"RuntimeError: 401 for { ({'Authorization': 'Bearer ' + values[8]})!r}"
    err = [f"> authorization: bearer {values[1]}", f"sent {sent}", last]
    attempt = Attempt(
        Outcome.FAILED, "\n".join(out) + "\n", "\n".join(err) + "\n", text=f"rank 0 raised {last}"
    )
    run = write(world, "exec", "--name", "headers", "--restarts", "0", "--", "false", attempts=[attempt])
    printed = run.file("node-0/attempt-001/rank-0.out") + run.file("node-0/attempt-001/rank-0.err")
    assert all(value.encode() in printed for value in values)
    run.distui("export", "out.tar.gz").fine()
    files = contents(world.work / "out.tar.gz")
    assert b"Authorization: Bearer ***" in files["node-0/attempt-001/rank-0.out"]
    assert b"401 for" in files["node-0/attempt-001/rank-0.err"]
    for at, value in enumerate(values):
        assert not [name for name, data in files.items() if value.encode() in data], at


def test_long_logs_are_cut_and_say_so(world: World) -> None:
    run = noisy(world, lines=30_000)
    run.distui("export", "out.tar.gz", "--logs", "1").fine()
    files = contents(world.work / "out.tar.gz")
    data, whole = files["node-0/attempt-001/rank-0.out"], run.file("node-0/attempt-001/rank-0.out")
    assert (256 << 10) + (1 << 20) - 4096 < len(data) < (256 << 10) + (1 << 20) + 4096
    assert data.splitlines()[2] == whole.splitlines()[2]
    assert data.endswith(whole[-1000:])
    (marker,) = [line for line in data.splitlines() if line.startswith(b"[distui export left out ")]
    assert f" of {len(whole):,}]".encode() in marker
    (told,) = [one for one in json.loads(files["MANIFEST.json"])["files"] if one.get("of")]
    assert (told["name"], told["of"]) == ("node-0/attempt-001/rank-0.out", len(whole))


@pytest.fixture
def elsewhere() -> Iterator[World]:
    """Another person's machine: other directories, and no runs."""
    other = World()
    try:
        yield other
    finally:
        other.close()


def test_another_person_opens_it(world: World, elsewhere: World) -> None:
    run = noisy(world)
    run.distui("export", "out.tar.gz").fine()
    file = str(world.work / "out.tar.gz")
    done = elsewhere.distui("diagnose", file)
    assert done.code == 1
    assert "too-many-files" in done.out
    told = elsewhere.distui("diagnose", file, "--json").json()
    assert told["files"] == ["node-0/attempt-001/rank-0.out", "node-0/attempt-001/rank-0.err"]
    assert told["live"]["state"] == "failed"
    assert elsewhere.distui("status", file, "--json").fine().json()["run"] == run.id
    assert "RunEnded" in elsewhere.distui("events", file).fine().out
    assert "line 9 " in elsewhere.distui("logs", file).fine().out
    elsewhere.distui("replay", file).refused(2, "needs a terminal")


@pytest.mark.real
def test_a_live_run_is_told_as_it_was(world: World, elsewhere: World) -> None:
    run = world.execute("import time\nprint('up', flush=True)\ntime.sleep(600)\n", name="sleeper")
    assert run.wait("running") == 0
    assert until(lambda: b"up" in run.file("node-0/attempt-001/rank-0.out"))
    run.eventually(lambda now: now["ranks"] and now["ranks"][0]["rss_bytes"])
    assert "as it is now" in run.distui("export", "live.tar.gz").fine().out
    file = str(world.work / "live.tar.gz")
    told = elsewhere.distui("status", file, "--json").fine().json()
    assert told["state"] == "exported"
    assert told["text"].startswith("it was running when it was exported, ")
    (rank,) = told["ranks"]
    assert (rank["state"], rank["pid"], rank["rss_bytes"] > 0) == ("running", run.pids()[0], True)
    assert [one["outcome"] for one in told["attempts"]] == [None]
    text = elsewhere.distui("status", file).fine().out
    assert "live when exported" in text
    assert "lost" not in text
    events = [
        json.loads(line) for line in elsewhere.distui("events", file, "--json").fine().out.splitlines()
    ]
    assert events == run.events()[: len(events)], "nothing is invented"
    assert elsewhere.distui("logs", file).fine().out.strip() == "[rank 0 out] up"

    async def use(cockpit: Cockpit) -> None:
        await cockpit.until("sleeper")
        await cockpit.until(lambda text: "LIVE WHEN EXPORTED" in text.splitlines()[0])
        text = await cockpit.until("● running")  # the ranks as they were
        assert "lost" not in text.lower()

    in_cockpit(elsewhere, "replay", file, use=use).fine()
    assert run.status()["state"] == "running"
    run.stop("--grace", "2").fine()


def other_file(path: Path, kind: str) -> Path:
    """A file that is not a bundle."""
    texts = {"text": b"step 20 loss 2.1\n", "empty": b"", "gzip": gzip.compress(b"step 20 loss 2.1\n" * 100),
             "zeros": gzip.compress(bytes(1 << 20)), "two bytes": b"\x1f\x8b", "json": b"[" * 100_000}  # fmt: skip
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "tar":
        path.with_name("notes.txt").write_text("notes")
        with tarfile.open(path, "w:gz") as tar:
            tar.add(path.with_name("notes.txt"), "notes.txt")
    elif kind != "missing":
        path.write_bytes(texts[kind])
    return path


NO_BUNDLES = {
    "text": (2, "cannot be read (not a gzipped file"),
    "json": (2, "cannot be read (not a gzipped file"),
    "empty": (2, "is not a bundle of `distui export`"),
    "two bytes": (2, "cannot be read"),
    "gzip": (2, "is not a bundle of `distui export`: it is not a tar file"),
    "zeros": (2, "is not a bundle of `distui export`"),
    "tar": (2, "belongs in no bundle"),
    "folder": (3, "No run '"),
    "pipe": (3, "No run '"),
    "missing": (3, "No run '"),
}


def test_replay_of_what_is_no_bundle_is_a_sentence(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = world.work / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    for kind, (code, wanted) in NO_BUNDLES.items():
        place = world.work / kind
        place.mkdir()
        file = other_file(place / "it.tar.gz", kind)
        done = world.distui(
            "replay", str(file), env={"TERM": "xterm", "PATH": str(Path(DISTUI).parent)}, terminal=True
        )
        harmless(done.err)
        assert done.refused(code, wanted, str(file)).count(str(file)) == 1, kind
        assert os.listdir(folder) == [], kind


def forged(source: Path, target: Path, change: Callable[[str, bytes], bytes]) -> Path:
    """A bundle whose files are changed, with a manifest that knows of it."""
    files = {name: change(name, data) for name, data in contents(source).items()}
    manifest = json.loads(files.pop("MANIFEST.json"))
    for one in manifest["files"]:
        data = files[one["name"]]
        one |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    files["MANIFEST.json"] = json.dumps(manifest).encode()
    with tarfile.open(target, "w:gz", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(f"{manifest['run']}/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return target


DEEP = (b'{"a":' * 100_000, b"[" * 100_000)


def test_a_bundle_of_lines_too_deep(world: World, elsewhere: World) -> None:
    """Such a line is passed over, and named; what else is in the bundle is there."""
    run = noisy(world)
    run.distui("export", "out.tar.gz").fine()

    def change(name: str, data: bytes) -> bytes:
        if name.endswith(".jsonl"):
            head, _, rest = data.partition(b"\n")
            return b"\n".join((head, *DEEP, rest)) + DEEP[0] + b"\n"
        return DEEP[0] if name in ("plan.json", "status.json") else data

    file = forged(world.work / "out.tar.gz", world.work / "deep", change)
    status = elsewhere.distui("status", str(file)).fine()
    assert "noisy" in status.out
    events = elsewhere.distui("events", str(file)).fine()
    assert "RunEnded" in events.out
    assert "journal.jsonl" in events.err
    assert len(events.err.splitlines()) == 2, "plan.json is named, too"
    assert "line 9 " in elsewhere.distui("logs", str(file)).fine().out
    diagnosed = elsewhere.distui("diagnose", str(file))
    assert (diagnosed.code, "Traceback" in diagnosed.out + diagnosed.err) == (1, False), diagnosed.err


@pytest.mark.parametrize("name", ["run.json", "journal.jsonl"])
def test_a_bundle_of_one_file_too_deep_is_read_or_a_sentence(
    world: World, elsewhere: World, name: str
) -> None:
    noisy(world).distui("export", "out.tar.gz").fine()
    file = forged(
        world.work / "out.tar.gz", world.work / "deep", lambda one, data: DEEP[0] if one == name else data
    )
    for verb in ("status", "events", "logs"):
        done = elsewhere.distui(verb, str(file))
        if done.code:
            done.refused(2)
        assert "Traceback" not in done.err
        assert len(done.err.splitlines()) <= 1


def test_what_was_changed_or_cut_off_is_refused(world: World, elsewhere: World) -> None:
    run = noisy(world)
    run.distui("export", "out.tar.gz").fine()
    data = (world.work / "out.tar.gz").read_bytes()
    (world.work / "half.tar.gz").write_bytes(data[: len(data) // 2])
    elsewhere.distui("status", str(world.work / "half.tar.gz")).refused(2, "half.tar.gz", "again")
    elsewhere.distui("status", "nothing.tar.gz").refused(3, "nothing.tar.gz")
