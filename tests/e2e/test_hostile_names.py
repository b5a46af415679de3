"""Names, journals and bundles of others: nothing in them acts on the terminal, fills the disk or ends in a traceback."""

from __future__ import annotations

import gzip
import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from .runs import DISTUI, World

EVIL = "\u001b]52;c;aGk=\u0007fin\u001b[2J\u202e\u009b31m\u200b\ufeff\U000e0041\u2066"
ACTS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)


def terminal(world: World, *words: str) -> str:
    """What a verb writes to a terminal, both streams."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [DISTUI, *words],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**world.env, "TERM": "xterm"},
        cwd=world.work,
    )
    os.close(slave)
    data = b""
    while True:
        try:
            data += os.read(master, 65536)
        except OSError:
            break
        if not data:
            break
    process.wait()
    os.close(master)
    return data.decode("utf-8", "replace").replace("\r\n", "\n")


def ended(world: World) -> Path:
    run = world.run("exec", "--name", "plain", "--", sys.executable, "-c", "pass")
    run.wait()
    return run.path


def test_names_and_journals_do_not_act_on_the_terminal(world: World) -> None:
    path = ended(world)
    bundle = world.work / "it.tgz"
    record = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**record, "name": EVIL}))
    with (path / "journal.jsonl").open("a") as file:
        last = json.loads((path / "journal.jsonl").read_text().splitlines()[-1])
        last["seq"] += 1
        last["event"] = {
            "type": "FindingRaised",
            "finding": {"id": "x", "severity": "warning", "text": EVIL},
        }
        file.write(json.dumps(last, ensure_ascii=False) + "\n")
        file.write('{"a":' * 100_000 + "\n")
    run = path.name
    for words in (("ls",), ("ls", "--json"), ("events", run), ("events", run, "--json"), ("status", run),
                  ("status", run, "--json"), ("logs", run), ("diagnose", run)):  # fmt: skip
        shown = terminal(world, *words)
        assert not ACTS.search(shown), (words, ACTS.search(shown), shown)
        assert "Traceback" not in shown, (words, shown)
    lines = world.distui("events", run, "--json").fine().out.splitlines()
    assert EVIL in [json.loads(line)["event"].get("finding", {}).get("text") for line in lines]
    world.distui("export", run, str(bundle)).fine()
    for verb in ("status", "events", "logs"):  # by content, not by ending
        shown = terminal(world, verb, str(bundle))
        assert not ACTS.search(shown), (verb, shown)
        assert "no run" not in shown


def test_a_bomb_is_refused_before_it_is_written(world: World) -> None:
    bomb = world.work / "bomb.tar.gz"
    with gzip.open(bomb, "wb") as packed, tarfile.open(fileobj=packed, mode="w|") as tar:
        for number in range(2):
            info = tarfile.TarInfo(f"20260101-000000-x-00000000/node-0/attempt-001/rank-{number}.out")
            info.size = 80 << 20
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    folder = world.work / "tmp"
    folder.mkdir()
    before = shutil.disk_usage(folder).free
    said = world.distui("status", str(bomb), env={"TMPDIR": str(folder)}).refused(2)
    assert "500 times its size" in said
    assert before - shutil.disk_usage(folder).free < 64 << 20
    assert list(folder.iterdir()) == []
