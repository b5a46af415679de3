"""`distui diff` and `:compare` of real runs: presets, attempts, a bundle against a live run, records that are hurt."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from archives import unpack
from doubles.served import doubled
from each import for_each

from distui.runners.run.model import AttemptEnded, Outcome

from .cockpit import Cockpit, in_cockpit
from .runs import Run, World, until
from .written import Attempt, write

FAILS_ONCE = """
import os, pathlib, sys, time
import torch, torch.distributed as dist
import helper
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
failed = pathlib.Path("failed")
first = os.environ["RATE"] == "1" and not failed.exists()
dist.barrier()
for step in range(1, 40):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print(f"step {step} loss {1 / step:.4f}", flush=True)
    time.sleep(0.05)
    if step == 20 and first:
        pathlib.Path("helper.py").write_text("rate = 2  # mended\\n")
        failed.touch()
        raise ValueError("bad batch 17")
"""
SECRETS = ("hf_" + "a" * 34, "hf_" + "b" * 34)


class Runs:
    """A user with a run of two attempts, another one of another preset, and one that lives."""

    def __init__(self) -> None:
        self.world = world = World()
        world.script("helper.py", "rate = 1\n")
        script = world.script("train.py", FAILS_ONCE)
        one = ("--nproc-per-node", "1", "--name")
        self.a = world.run(
            "launch", "ddp", *one, "night", "--restarts", "2", "--env", "RATE=1", "--", script, "--lr", "1",
            env={"HF_TOKEN": SECRETS[0]},
        )  # fmt: skip
        self.b = world.run(
            "launch", "single", *one, "second", "--env", "RATE=2", "--", script, "--lr", "2", "--batch", "4",
            env={"HF_TOKEN": SECRETS[1]},
        )  # fmt: skip
        for run in (self.a, self.b):
            assert run.wait() == 0, run.describe()
        assert until(lambda: not world.processes())  # the agents write their last second

    def rows(self, *words: str) -> dict[str, dict[str, dict[str, Any]]]:
        """`diff --json`: section → name → row."""
        document = self.world.distui("diff", *words, "--json").fine().json()
        return {part["name"]: {row["name"]: row for row in part["rows"]} for part in document["sections"]}


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    made = Runs()
    try:
        yield made
    finally:
        made.world.close()


def sums(path: Path) -> dict[str, str]:
    """Every file below a folder, and what is in it."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


@pytest.mark.real
def test_two_runs_of_other_presets(runs: Runs) -> None:
    before = sums(runs.world.runs)
    rows = runs.rows("night", "second")
    assert (rows["plan"]["preset"]["a"], rows["plan"]["preset"]["b"]) == ("ddp", "single")
    assert rows["arguments"].keys() == {"--lr", "--batch"}
    assert (rows["arguments"]["--batch"]["kind"], rows["arguments"]["--lr"]["b"]) == ("only B", "2")
    assert rows["environment"].keys() == {"RATE", "HF_TOKEN"} | (
        rows["environment"].keys() & {"GLOO_SOCKET_IFNAME"}
    )
    assert (rows["environment"]["HF_TOKEN"]["kind"], rows["environment"]["HF_TOKEN"]["a"]) == (
        "differs",
        "***",
    )
    assert rows["versions"] == {}  # the same torch
    steps = rows["numbers"]["step, last"]
    assert (steps["kind"], steps["values"][1]) == ("value", 39)
    assert rows["numbers"]["step time"]["kind"] in ("same", "unknown", "differs")
    assert sums(runs.world.runs) == before  # reading changes nothing

    check_secrets(runs)
    for words, code in (("night", 0), ("night@2", 0), ("second", 1)):
        assert runs.world.distui("diff", "night" if code else words, words, "--exit-code").code == code
    assert runs.world.distui("diff", "night", "second").code == 0


def check_secrets(runs: Runs) -> None:
    """No secret is printed or written."""
    for words in (("night", "second"), ("night", "second", "--all"), ("night",)):
        for more in ((), ("--json",)):
            done = runs.world.distui("diff", *words, *more).fine()
            assert not any(secret in done.out + done.err for secret in SECRETS)
    assert "secret: they differ" in runs.world.distui("diff", "night", "second").out
    for file in runs.world.runs.rglob("*"):
        if file.is_file():
            assert not any(secret.encode() in file.read_bytes() for secret in SECRETS), file


@pytest.mark.real
def test_a_failed_attempt_against_its_restart(runs: Runs) -> None:
    rows = runs.rows("night@1", "night@2")
    cause = rows["cause"]["first cause"]
    assert "bad batch 17" in cause["a"]
    assert (cause["b"], rows["cause"]["rank"]["a"], rows["cause"]["rank"]["b"]) == ("none", "0", "-")
    assert (rows["outcome"]["state"]["a"], rows["outcome"]["state"]["b"]) == ("failed", "succeeded")
    assert rows["outcome"]["begun by"]["b"] == "failure"
    assert rows["code"].keys() == {"file helper.py"}  # edited between the two
    assert rows["plan"] == {}
    assert rows["environment"] == {}
    last = rows["numbers"]["step, last"]["values"]
    assert 18 <= last[0] <= 21
    assert last[1] == 39
    done = runs.world.distui("diff", "night").fine()
    assert "bad batch 17" in done.out
    assert "its numbers are of all 2 attempts" in done.out
    record = runs.world.distui("diff", "night", "--json").fine().json()
    assert record["facts"]["versions"]["torch"]
    assert "fingerprints" not in record
    assert len(json.dumps(record)) < 1 << 20


@pytest.mark.real
def test_a_bundle_against_a_live_run(runs: Runs) -> None:
    world = runs.world
    live = world.execute("import time\ntime.sleep(600)\n", "--env", "RATE=3", name="live")
    assert live.wait("running") == 0
    bundle = str(world.work / "night.tar.gz")
    world.distui("export", "night", bundle).fine()
    before = sorted(world.root.glob("state/distui/runs/*"))
    rows = runs.rows(bundle, "live")
    assert (rows["environment"]["RATE"]["a"], rows["environment"]["RATE"]["b"]) == ("1", "3")
    assert rows["outcome"]["state"]["b"] == "running"
    same = runs.rows(bundle, "night")
    assert same["plan"] == same["code"] == same["cause"] == {}
    assert (
        same["environment"].get("HF_TOKEN", {"kind": "unknown"})["kind"] == "unknown"
    )  # bundles hold no fingerprint
    assert sorted(world.root.glob("state/distui/runs/*")) == before
    assert live.status()["state"] == "running"
    unpack(Path(bundle), world.work / "out")
    (record,) = (world.work / "out").glob("*/run.json")
    assert json.loads(record.read_text())["fingerprints"] == {}
    assert json.loads((runs.a.path / "run.json").read_text())["fingerprints"].keys() == {"HF_TOKEN"}
    Path(bundle).write_bytes(Path(bundle).read_bytes()[:-200])
    world.distui("diff", bundle, "night").refused(2, "night.tar.gz")
    live.stop().fine()


@pytest.fixture
def written(world: World) -> Run:
    """A run of two attempts, with metrics, and another one."""
    one = ("exec", "--restarts", "2", "--name")
    run = write(
        world,
        *one,
        "night",
        "--",
        "true",
        attempts=[Attempt(Outcome.FAILED, err="ValueError: x\n"), Attempt()],
    )
    write(world, *one, "second", "--", "false")
    (run.path / "metrics").mkdir(mode=0o700)
    (run.path / "metrics" / "1s.jsonl").write_text(METRICS)
    return run


METRICS = """\
{"t":1795815288,"s":1,"n":1,"i":{"host":[-1]},"m":{"host.mem":[4.574e+09],"host.shm":[0]}}
{"t":1795815289,"s":1,"n":1,"i":{"rank":[0],"host":[-1]},"m":{"rank.rss":[1.095e+07],"host.cpu":[100]}}
"""


def test_what_nobody_should_type(written: Run) -> None:
    cases: list[tuple[tuple[str, ...], int, str]] = [
        (("nope", "night"), 3, "no run 'nope'"),
        (("night@3", "night"), 2, "its last is 2"),
        (("night@0", "night"), 2, "counted from 1"),
        (("night@x", "night"), 2, "NAME@2"),
        (("", "night"), 2, "names no run"),
        ((":night", "night"), 2, "names no run"),
        (("host:", "night"), 2, "names no run"),
        (("-oProxyCommand=x:night", "night"), 2, ""),
        (("a b:night", "night"), 2, "a b"),
        (("gpu1:--help", "night"), 2, "--help"),
        (("gpu1:$(id)", "night"), 2, "cannot be sent"),
        (("train.py", "night"), 2, "not a bundle"),
        (("/dev/null", "night"), 3, "no run"),
        (("night\x1b[31m", "night"), 3, "no run"),
        (("night", "second", "third"), 2, "one word too many"),
    ]
    written.world.script("train.py", "")
    for words, code, part in cases:
        text = written.world.distui("diff", *words).refused(code)
        assert part.lower() in text.lower(), (words, text)
        assert "\x1b" not in text, words


def _drop(path: Path, *fields: str) -> None:
    record = json.loads(path.read_bytes())
    path.write_text(json.dumps({name: value for name, value in record.items() if name not in fields}))


def _older(run: Path) -> None:
    """As a version wrote it that recorded less."""
    _drop(run / "run.json", "git", "fingerprints")
    _drop(run / "plan.json", "save_on", "signals", "batch", "mesh", "coordinates", "origins", "restart")
    lines = (run / "journal.jsonl").read_text().splitlines()
    for at, line in enumerate(lines):
        event = json.loads(line)
        for field in ("code", "driver", "gpus", "training", "idle"):
            event["event"].pop(field, None)
        lines[at] = json.dumps(event)
    (run / "journal.jsonl").write_text("\n".join(lines) + "\n")


HURT: dict[str, Callable[[Path], object]] = {
    "older": _older,
    "no journal": lambda run: (run / "journal.jsonl").unlink(),
    "half a journal": lambda run: (run / "journal.jsonl").write_bytes((run / "journal.jsonl").read_bytes()[:900]),
    "noise in the journal": lambda run: (run / "journal.jsonl").open("ab").write(b"\xff\xfe{]\n" * 20),
    "no plan": lambda run: (run / "plan.json").unlink(),
    "another plan": lambda run: (run / "plan.json").write_text('{"env": [], "command": {"a": 1}, "mesh": "x"}'),
    "a list as plan": lambda run: (run / "plan.json").write_text("[[]]"),
    "no environment": lambda run: (run / "environ").unlink(),
    "a torn environment": lambda run: (run / "environ").write_bytes(b"A=1\0B"),
    "no metrics": lambda run: shutil.rmtree(run / "metrics"),
    "noise as metrics": lambda run: (run / "metrics" / "1s.jsonl").write_bytes(b"\0" * 4096 + b"{}\n[]\n"),
}  # fmt: skip


def test_a_record_that_is_hurt_costs_what_was_in_it(written: Run, tmp_path: Path) -> None:
    """Compared with the whole one: no traceback, and what is missing is n/a, never 0 and never a difference."""
    world = written.world
    shutil.copytree(written.path, tmp_path / "whole")
    for what, hurt in HURT.items():
        hurt(written.path)
        for words in (("night", "second"), ("night",), ("second", "night@1")):
            done = world.distui("diff", *words)
            assert "Traceback" not in done.err + done.out, what
            assert done.code == 0 or (words[1:] == ("night@1",) and "journal" in what), (
                what,
                done.err,
                done.out,
            )
        document = world.distui("diff", "second", "night", "--json").fine().json()
        rows = [row for part in document["sections"] for row in part["rows"]]
        for row in rows:
            if row["a"] is None or row["b"] is None:
                assert row["kind"] in ("unknown", "value") or "-" in (row["a"], row["b"]), (what, row)
        if what == "no metrics":
            assert any("no metrics" in note for note in document["notes"])
        shutil.rmtree(written.path)
        shutil.copytree(tmp_path / "whole", written.path)


@pytest.mark.real
def test_curves_over_each_other(runs: Runs) -> None:
    async def use(cockpit: Cockpit) -> None:
        await cockpit.press(":", *"compare second", "enter")
        parts = ("╵0s", "step time  A", "night and second")
        await cockpit.until(lambda text: all(part in text for part in parts))
        await cockpit.press("x")
        await cockpit.until(lambda text: "step time  A" in text and "╵0s" not in text)
        await cockpit.press("escape")
        await cockpit.until(lambda text: "night and second" not in text)
        await cockpit.press(":", *"compare @1", "enter")
        parts = ("night@1", "night@2", "╵0s")
        await cockpit.until(lambda text: all(part in text for part in parts))
        await cockpit.press("escape")
        await cockpit.until(lambda text: "night@1" not in text)
        await cockpit.press(":", *"compare nope", "enter")
        await cockpit.until(lambda text: "no run 'nope'" in text.lower())
        await cockpit.press("escape")
        await cockpit.until(lambda text: "no run 'nope'" not in text.lower())

    in_cockpit(runs.world, "attach", "night", use=use, width=80, height=24).fine()


@for_each("loss, value, not_finite", [("0.25", 0.25, {}), ("nan", None, {"loss": "nan"})])
async def test_the_last_values_are_those_of_the_last_line(
    loss: str, value: float | None, not_finite: dict[str, str]
) -> None:
    """Also where no second comes that would keep them, and where the loss is no number."""
    async with doubled(nproc_per_node=1) as (run, runners):
        await run.hooked()
        for step in range(3):
            runners.newest.writes(0, f"step {step} loss 0.5\n")
            await asyncio.sleep(1.2)
        runners.newest.writes(0, f"step 77 loss {loss}\n")
        runners.newest.finishes()
        await run.until(lambda state: state.phase.ended)
        (last,) = run.all_of(AttemptEnded)[0].training
        assert (last.step, last.loss, last.not_finite) == (77, value, not_finite)
