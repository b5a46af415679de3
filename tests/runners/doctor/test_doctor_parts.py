"""A fault of the doctor's own is a finding. What can be begun again is, and everything else is examined."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hub.children import Pipes, Programs

from distui.presets.finding import Finding
from distui.runners.doctor import difference_checks, network_checks
from distui.runners.doctor import examine as doctor
from distui.runners.doctor.examine import DoctorRequest, NodeToCheck
from distui.runners.doctor.node_facts import MAGIC
from distui.runners.run import clock, rpc
from distui.runners.run.wire.ssh import Way

from .made import HEALTHY

Said = Callable[[dict[str, Any]], dict[str, Any]]


class Fault(Exception):
    """What a broken part raises."""


class Nodes:
    """The ends of nodes behind an ssh; `says`: by node, what it makes of its answers."""

    def __init__(self, programs: Programs) -> None:
        programs.put("ssh", self._node)
        self.says: dict[str, Said] = {}
        self.first: dict[str, list[bytes]] = {}
        """By node, what it writes before anything else."""

    async def _node(self, words: tuple[str, ...], pipes: Pipes) -> int:
        name = words[words.index("--") + 1]
        await pipes.stdin.readexactly(int(await pipes.stdin.readline()))
        pipes.stdout.writelines(self.first.get(name, []))
        self._write(pipes, {"ready": True})
        async for line in pipes.stdin:
            asked = json.loads(line)
            answer = {"id": asked["id"], **_answer(name, asked)}
            self._write(pipes, self.says.get(name, dict)(answer))
        return 0

    def _write(self, pipes: Pipes, message: Mapping[str, Any]) -> None:
        pipes.stdout.write(MAGIC.encode() + json.dumps(message).encode() + b"\n")


def _answer(name: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    if asked["op"] == "clock":
        return {"clock": clock.now()}
    if asked["op"] == "facts":
        return {**copy.deepcopy(HEALTHY), "hostname": name, "boot": name}
    return {"ok": True, "seconds": 0.001, "resolved": None}


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    return Nodes(Programs(monkeypatch))


async def examined(
    *names: str, progress: Callable[[str, int, int], None] = lambda *_: None
) -> dict[str, list[Finding]]:
    """The findings about parts that failed, by id; every node that answers is there."""
    places = [NodeToCheck(name, Way(name)) for name in names]
    outcome = await doctor.examine(DoctorRequest(places=places, try_pairs=False), progress)
    found: dict[str, list[Finding]] = {"nodes": []}
    for finding in outcome.findings:
        found.setdefault(finding.id, []).append(finding)
    assert {node.name for node in outcome.nodes} == set(names) - {
        finding.where
        for finding in outcome.findings
        if finding.id in ("part-failed:doctor-facts", "D-FACTS", "D-SSH")
    }
    return found


async def test_without_a_fault_no_part_is_named(nodes: Nodes) -> None:
    assert not [id_ for id_ in await examined("box", "crate") if id_.startswith("part-failed")]


async def test_a_bar_that_cannot_be_drawn_ends_no_examination(nodes: Nodes) -> None:
    def broken(*_: object) -> None:
        raise Fault("no terminal")

    (finding,) = (await examined("box", "crate", progress=broken))["part-failed:doctor-progress"]
    assert finding.severity == "warning"
    assert finding.text == "internal error in doctor-progress (it is tried again): Fault: no terminal"


async def test_a_node_whose_facts_cannot_be_read_hides_no_other(nodes: Nodes) -> None:
    nodes.says["box"] = lambda answer: {name: value for name, value in answer.items() if name != "clock"}
    (finding,) = (await examined("box", "crate"))["part-failed:doctor-facts"]
    assert (finding.where, finding.severity) == ("box", "error")
    assert finding.text == "internal error in doctor-facts (it is not tried again): KeyError: 'clock'"
    assert finding.evidence[-1] == "KeyError: 'clock'"


async def test_a_check_that_fails_leaves_the_others(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[Finding]:
        raise Fault("check")

    for module, name, id_ in (
        (difference_checks, "check_differences", "doctor-checks"), (network_checks, "reach", "doctor-reach"),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(module, name, broken)
            found = await examined("box", "crate")
        assert [finding.severity for finding in found[f"part-failed:{id_}"]] == ["error"]


async def test_the_reader_of_a_session_begins_again(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    part = rpc.OpenRequests.part

    def broken_once(requests: Any, number: Any, message: Any) -> None:
        if number == "spoilt":
            raise Fault("reader")
        part(requests, number, message)

    monkeypatch.setattr(rpc.OpenRequests, "part", broken_once)
    nodes.first["box"] = [MAGIC.encode() + b'{"id": "spoilt"}\n']
    (finding,) = (await examined("box", "crate"))["part-failed:session-answers"]
    assert (finding.where, finding.severity) == ("box", "warning")
    assert "it starts again in 1 s" in finding.text


async def test_a_reader_that_is_given_up_ends_its_session(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise Fault("reader")

    monkeypatch.setattr(rpc.OpenRequests, "part", broken)
    nodes.first["box"] = [MAGIC.encode() + b"{}\n"] * 8
    monkeypatch.setattr("distui.runners.run.parts.BACKOFF_S", (0.1, 0.1))
    (finding,) = (await examined("box"))["D-SSH"]
    assert finding.value == "box no longer answers"


@pytest.mark.parametrize("line", [b"[1]", b"{", b'{"id": [1]}', b"[" * 100_000, b'"x"'])
async def test_a_node_that_sends_no_answers_is_named_at_once(nodes: Nodes, line: bytes) -> None:
    nodes.first["box"] = [MAGIC.encode() + line + b"\n"]
    began = asyncio.get_running_loop().time()
    (finding,) = (await examined("box"))["D-SSH"]
    assert finding.value == "box sends lines that are not answers"
    assert asyncio.get_running_loop().time() - began < 5


async def test_a_fault_on_the_node_is_named_at_once(nodes: Nodes) -> None:
    nodes.says["box"] = lambda answer: (
        {"id": answer["id"], "failed": "KeyError: 'x'"} if "boot" in answer else answer
    )
    (finding,) = (await examined("box", "crate"))["D-FACTS"]
    assert finding.value == "internal error in facts on box: KeyError: 'x'"
