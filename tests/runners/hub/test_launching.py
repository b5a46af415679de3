"""A launch: its stages, what is said when it fails, and that it goes on after anybody in it has died."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distui.presets.plan import Place, Plan, command_plan
from distui.presets.request import Request
from distui.runners.hub import cluster_launch, launch_order
from distui.runners.hub.clouds import Cloud, CloudError
from distui.runners.hub.launch_order import LaunchProgress, SkyRequest
from distui.runners.hub.merged_run import MergedRun
from distui.runners.node.routes import Route
from distui.runners.run.model import HUB, LinkChanged, LinkState, RunCreated, RunPhase
from distui.runners.run.run_directories import Entry
from distui.runners.run.run_record import RunRecord, summarise

from .children import Pipes, Programs
from .scripted_sky import ScriptedSky
from .test_sky_process import CLOUDS

ABOUT = {
    "state": "UP", "nodes": 2, "hosts": [], "resources": "2x(H100:8)", "infra": "aws/us-east-1", "since": 1.0,
    "autostop_min": None, "down": False, "ours": True, "user": "me", "event": "", "managed": False,
}  # fmt: skip
TEXT = [
    "⚙︎ Launching on AWS us-east-1.\n",
    "⚙︎ Syncing files.\n",
    "✓ Setup detached.\n",
    "⚙︎ Job submitted, ID: 7\n",
]


def error(kind: str, text: str) -> dict[str, Any]:
    return {"error": {"kind": kind, "text": text, "tried": ""}}


class Desk(MergedRun):
    """A run whose nodes are never linked to."""

    def __init__(self, run_dir: Path) -> None:
        record = RunRecord("r-train-0123abcd", "0123abcd", "train", 1.0, "here", "hub", nnodes=2)
        place = Place(run=record.run, run_dir="/x", port=1, ras_port=2, gpus=0, cores=1, cwd="", python="")
        plan: Plan = command_plan(("true",), Request(), place)
        super().__init__(Entry(run_dir, record), plan)
        self.emit(RunCreated(record.run, record.name, record.host, summarise(plan), merged=True))
        self.routes: list[Route] = []
        self.link_state = LinkState.UP
        """What becomes of each link at once."""

    @property
    def failed(self) -> str:
        """Why the run failed; "" where it did not."""
        return self.state.end_text if self.state.phase is RunPhase.FAILED else ""

    def set_routes(self, routes: list[Route]) -> None:
        self.routes = routes
        for route in routes:
            self.emit(LinkChanged(self.link_state, route.host), node=route.node)


class Scene:
    """Answers of SkyPilot, an ssh that only says who answers, and the desk."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, programs: Programs | None) -> None:
        """`programs` None: both are processes."""
        self.sky = ScriptedSky(folder, monkeypatch, programs)
        if programs is not None:
            programs.put("ssh", ssh)
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        bundle = folder / "cache/distui/bundles/bundle-1/node.sh"
        bundle.parent.mkdir(parents=True)
        bundle.write_text("#!/bin/sh\n")
        self.desk = Desk(folder)
        launch_order.write(
            folder, SkyRequest(kind="skypilot", cluster="tc", task=TASK, bundle="~/.distui/bundle-1")
        )

    def answers(self, **verbs: list[dict[str, Any]]) -> None:
        usual: dict[str, list[dict[str, Any]]] = {
            "describe": [{"data": None}, {"data": ABOUT}],
            "jobs": [{"data": []}],
            "cost": [{"data": {"total": 10.0, "seconds": 3600.0}}],
            "launch": [{"request": "req-1", "said": TEXT, "data": {"job": 7, **ABOUT}}],
            "job_state": [{"data": "SETTING_UP"}, {"data": "RUNNING"}],
            "reach": [{"data": {"aliases": ["tc", "tc-worker1"], "hosts": []}}],
            "tail": [{"said": ["hello from a node\n"], "hang": True}],
        }
        self.sky.answers({**usual, **verbs})

    def asked(self, verb: str) -> list[dict[str, Any]]:
        return self.sky.asked(verb)

    async def launch(self) -> None:
        await cluster_launch.launch(self.desk, self.desk.set_routes)

    @property
    def log(self) -> str:
        return (self.desk.run_dir / "launch.log").read_text()


TASK = {"name": "train-0123abcd", "num_nodes": 2, "resources": {}, "run": "true"}


async def ssh(words: tuple[str, ...], pipes: Pipes) -> int:
    """Logs in anywhere, and says which host that is."""
    host = words[words.index("--") + 1]
    pipes.stdout.write(b'Welcome\n{"hostname": "of-%s"}\n' % host.encode())
    return 0


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(tmp_path, monkeypatch, Programs(monkeypatch))
    yield made
    made.desk.chronicle.journal.close()


def stages(desk: Desk) -> dict[str, bool | None]:
    """Stage of the whole → whether it came to its end: True, False when it failed, None when it is on."""
    return {
        str(stage): None if at.ended is None else not at.failed
        for (stage, node), at in desk.state.stages.items()
        if node == HUB
    }


async def test_the_jobs_own_text_says_that_it_has_started(scene: Scene) -> None:
    """SkyPilot's word for its state comes later, and is asked for only now and then."""
    started = "└── Job started. Streaming logs... (Ctrl-C to exit log streaming; job will not be killed)\n"
    scene.answers(job_state=[{"data": "SETTING_UP"}], tail=[{"said": [started], "hang": True}])
    await scene.launch()
    assert stages(scene.desk)["start"] is True


async def test_every_stage_and_the_way_to_each_node(scene: Scene) -> None:
    await every_stage(scene)


@pytest.mark.real
async def test_a_process_answers_as_its_double_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds in ("POLL_SECONDS", "AGAIN_SECONDS"):
        monkeypatch.setattr(cluster_launch, seconds, 0.02)
    scene = Scene(tmp_path, monkeypatch, None)
    await every_stage(scene)
    scene.desk.chronicle.journal.close()


async def every_stage(scene: Scene) -> None:
    """A launch that goes well, and the process dies once in it."""
    scene.answers(
        launch=[{"request": "req-1", "said": TEXT[:1], "die": True}],
        follow=[{"said": TEXT[1:], "data": {"job": 7, **ABOUT}}],
    )
    await scene.launch()
    assert scene.desk.failed == ""
    assert stages(scene.desk) == {"provision": True, "sync": True, "setup": True, "start": True}
    assert [(route.host, route.target) for route in scene.desk.routes] == [
        ("tc", "tc"), ("tc-worker1", "tc-worker1"),
    ]  # fmt: skip
    assert scene.desk.routes[1].remote == ("sh", "~/.distui/bundle-1/node.sh", "attach", "0123abcd", "1")
    cluster = scene.desk.state.cluster
    assert cluster is not None
    assert (cluster.name, cluster.job, cluster.price_per_hour, cluster.state) == ("tc", 7, 10.0, "UP")
    assert "Launching on AWS us-east-1." in scene.log
    assert "hello from a node" in scene.log
    assert len(scene.asked("launch")) == 1, "the API server was working at it all along"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (error("ResourcesUnavailableError", "VcpuLimitExceeded: quota of 0"), "quota is used up"),
        (
            error("ResourcesUnavailableError", "InsufficientInstanceCapacity"),
            "no such nodes are free there now",
        ),
        (error("NoCloudAccessError", "none"), "`sky check` shows why for each"),
    ],
)
async def test_a_refusal_is_said_in_plain_words(
    scene: Scene, answer: dict[str, Any], sentence: str
) -> None:
    scene.answers(launch=[{"request": "r", "said": TEXT[:1], **answer}], describe=[{"data": None}])
    await scene.launch()
    assert sentence in scene.desk.failed
    assert stages(scene.desk) == {"provision": False}
    assert "billed" not in scene.desk.failed, "nothing is left"


async def test_the_next_place_is_offered_where_the_one_named_has_nothing(scene: Scene) -> None:
    pinned = {**TASK, "resources": {"infra": "gcp/us-central1", "accelerators": "A100-80GB:8"}}
    launch_order.write(
        scene.desk.run_dir,
        SkyRequest(kind="skypilot", cluster="tc", task=pinned, bundle="~/.distui/bundle-1"),
    )
    refused = error("ResourcesUnavailableError", "ZONE_RESOURCE_POOL_EXHAUSTED")
    scene.answers(launch=[refused], describe=[{"data": None}], candidates=[{"data": {"text": CLOUDS}}])
    await scene.launch()
    assert (
        "; --on aws/us-east-1 has them (A100-80GB:8 p4de.24xlarge[Spot], $81.93 per hour)"
        in scene.desk.failed
    )
    assert "infra" not in scene.asked("candidates")[0]["args"]["config"]["resources"]


async def test_what_is_left_after_a_failure_is_said(scene: Scene) -> None:
    scene.answers(
        job_state=[{"data": "FAILED_SETUP"}], tail=[{"said": ["pip: no such package\n"], "data": 0}]
    )
    await scene.launch()
    assert "setup failed on tc" in scene.desk.failed
    assert "cluster tc is up and is billed: `distui down train`" in scene.desk.failed
    assert stages(scene.desk)["setup"] is False
    assert "pip: no such package" in scene.log


async def test_an_api_server_that_goes_away_is_asked_again(scene: Scene) -> None:
    gone = error("ConnectionError", "Connection refused")
    scene.answers(
        launch=[
            {"request": "req-1", **gone},
            {"request": "req-2", "said": TEXT, "data": {"job": 7, **ABOUT}},
        ],
        follow=[error("ClientError", "no such request")],
    )
    await scene.launch()
    assert scene.desk.failed == ""
    assert stages(scene.desk)["start"] is True
    assert [asked["args"]["request"] for asked in scene.asked("follow")] == ["req-1"]
    assert launch_order.progress(scene.desk.run_dir).job == 7


async def test_an_api_server_that_does_not_come_up_at_once_is_waited_for(scene: Scene) -> None:
    down = error(
        "RuntimeError", "SkyPilot API server process exited unexpectedly. View logs at: server.log"
    )
    scene.answers(describe=[down, {"data": None}, {"data": ABOUT}])
    await scene.launch()
    assert scene.desk.failed == ""
    assert stages(scene.desk)["start"] is True


async def test_a_job_that_was_submitted_is_not_submitted_twice(scene: Scene) -> None:
    scene.answers(
        launch=[error("ValueError", "must not be asked")],
        describe=[{"data": ABOUT}],
        jobs=[{"data": [{"job": 10, "name": "other"}, {"job": 9, "name": "train-0123abcd"}]}],
    )
    launch_order.keep(scene.desk.run_dir, LaunchProgress(request="req-1"))
    await scene.launch()
    assert scene.desk.failed == ""
    assert launch_order.progress(scene.desk.run_dir).job == 9


async def test_a_hub_that_died_after_the_job_was_submitted_goes_on_from_there(scene: Scene) -> None:
    scene.answers(launch=[error("ValueError", "must not be asked")], describe=[{"data": ABOUT}])
    launch_order.keep(scene.desk.run_dir, LaunchProgress(request="req-1", job=7))
    await scene.launch()
    assert scene.desk.failed == ""
    assert stages(scene.desk)["start"] is True


async def test_the_nodes_are_found_while_files_are_still_copied(scene: Scene) -> None:
    """Writing ssh's configuration takes SkyPilot a second or two."""
    scene.answers(launch=[{"request": "req-1", "said": TEXT[:2], "hang": True}])
    task = asyncio.create_task(scene.launch())
    while not scene.asked("reach"):
        await asyncio.sleep(0.01)
    assert scene.desk.routes == [], "and are not logged in to before the bundle is there"
    scene.desk.stop_asked.set()
    await task


async def test_a_node_behind_the_wrong_alias(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers there, and then it is asked who it is."""
    monkeypatch.setattr(scene.desk, "set_routes", scene.desk.routes.extend)
    hosts = ["job7-of-tc", "job7-c2"]
    scene.answers(reach=[{"data": {"aliases": ["tc", "tc-worker1"], "hosts": hosts}}])
    await scene.launch()
    assert [route.host for route in scene.desk.routes] == ["of-tc", "c2"]
    assert (
        "ssh tc-worker1 leads to of-tc-worker1, and that node is job7-c2: `sky status`" in scene.desk.failed
    )


async def test_what_goes_to_the_nodes_is_there_until_the_job_is_submitted(scene: Scene) -> None:
    scene.answers(launch=[{"request": "req-1", "said": TEXT[:2], "hang": True}])
    brought = scene.desk.run_dir / "cargo/bundle-1/node.sh"
    task = asyncio.create_task(scene.launch())
    while "sync" not in stages(scene.desk):
        await asyncio.sleep(0.01)
    assert brought.read_text() == "#!/bin/sh\n"
    scene.desk.stop_asked.set()
    await task
    assert brought.exists(), "another hub may go on with it"
    scene.desk.stop_asked.clear()
    scene.answers(follow=[{"said": TEXT[2:], "data": {"job": 7}}])
    await scene.launch()
    assert not brought.exists()


async def test_a_stop_gives_the_launch_up_and_says_what_is_left(scene: Scene) -> None:
    scene.answers(
        launch=[{"request": "req-1", "said": TEXT[:2], "hang": True}],
        describe=[{"data": None}, {"data": ABOUT}],
    )
    task = asyncio.create_task(scene.launch())
    while "sync" not in stages(scene.desk):
        await asyncio.sleep(0.01)
    scene.desk.stop_asked.set()
    await task
    said = [text for _, text in scene.desk.state.notices]
    assert any("stopped; cluster tc is up and is billed: `distui down train`" in text for text in said)
    assert any("cancel" in question for question in scene.sky.questions()), (
        "the API server works at it no more"
    )


def quick(scene: Scene) -> None:
    """A launch without `setup:`, whose nodes are logged in to while the job is about to start; no agent answers yet."""
    launch_order.write(
        scene.desk.run_dir,
        SkyRequest(kind="skypilot", cluster="tc", task=TASK, bundle="~/.distui/bundle-1", fast=True),
    )
    scene.desk.link_state = LinkState.CONNECTING


async def test_a_stop_before_the_job_begins_cancels_it(scene: Scene) -> None:
    quick(scene)
    scene.answers(job_state=[{"data": "PENDING"}], cancel=[{"data": True}], describe=[{"data": None}])
    task = asyncio.create_task(scene.launch())
    while not scene.desk.routes:
        await asyncio.sleep(0.01)
    scene.desk.stop_asked.set()
    await task
    assert [asked["args"]["job"] for asked in scene.asked("cancel") if "args" in asked] == [7]
    assert scene.desk.routes == [], "nobody is waited for there"
    assert any("stopped; job 7 is cancelled" in text for _, text in scene.desk.state.notices)


async def test_a_job_that_fails_before_it_begins_leaves_no_links(scene: Scene) -> None:
    quick(scene)
    scene.answers(job_state=[{"data": "PENDING"}, {"data": "FAILED_DRIVER"}], tail=[{"data": 0}])
    await scene.launch()
    assert scene.desk.routes == []
    assert "SkyPilot could not start job 7 on tc" in scene.desk.failed


async def test_a_cluster_of_somebody_else_is_left_alone(scene: Scene) -> None:
    scene.answers(describe=[{"data": {**ABOUT, "ours": False, "user": "bob"}}])
    await scene.launch()
    assert "cluster tc is bob's: choose another name with --cluster" in scene.desk.failed
    assert scene.asked("launch") == []


async def test_a_stage_that_takes_too_long_fails(scene: Scene) -> None:
    scene.answers(launch=[{"request": "r", "said": TEXT[:1], "hang": True}])
    await scene.launch()
    assert "provision took longer than" in scene.desk.failed


async def test_a_secret_that_nobody_has_any_more(scene: Scene) -> None:
    task = {**TASK, "secrets": {"SOME_TOKEN": "***"}}
    launch_order.write(
        scene.desk.run_dir,
        SkyRequest(kind="skypilot", cluster="tc", task=task, bundle="~/.distui/bundle-1"),
    )
    scene.answers(describe=[{"data": None}])
    await scene.launch()
    assert "the value of SOME_TOKEN is no longer known here: export it" in scene.desk.failed


async def cloud(scene: Scene) -> Cloud:
    launch_order.keep(scene.desk.run_dir, LaunchProgress(job=7))
    found = cluster_launch.cloud_of(scene.desk)
    assert found is not None
    return found


async def test_down_wants_the_right_name(scene: Scene) -> None:
    scene.answers(down=[{"data": True}])
    found = await cloud(scene)
    with pytest.raises(CloudError, match="the cluster of this run is tc, not 'td'"):
        await found.down("td")
    assert await found.down("tc") == "cluster tc is down"
    assert scene.desk.state.cluster is not None
    assert scene.desk.state.cluster.down


async def test_autostop_is_told_and_shown(scene: Scene) -> None:
    scene.answers(autostop=[{"data": True}])
    found = await cloud(scene)
    assert await found.set_autostop(5) == "cluster tc goes down after 5 minutes without a job"
    assert scene.desk.state.cluster is not None
    assert scene.desk.state.cluster.autostop_min == 5
    assert await found.set_autostop(None) == "cluster tc stays until it is taken down"


@pytest.mark.parametrize(
    ("answers", "phase", "sentence"),
    [
        (
            {"describe": [{"data": ABOUT}], "job_state": [{"data": "CANCELLED"}]},
            RunPhase.STOPPED,
            "was cancelled",
        ),
        (
            {"describe": [{"data": ABOUT}], "job_state": [{"data": "FAILED"}]},
            RunPhase.LOST,
            "has ended (FAILED)",
        ),
        ({"describe": [{"data": None}]}, RunPhase.LOST, "cluster tc is gone"),
    ],
)
async def test_what_happens_behind_our_back_ends_the_run(
    scene: Scene, answers: Any, phase: RunPhase, sentence: str
) -> None:
    scene.answers(**answers)
    found = await cloud(scene)
    scene.desk.emit(LinkChanged(LinkState.LOST, "c1", "gone"), node=0)
    watching = asyncio.create_task(found.watch())
    while not scene.desk.state.phase.ended:
        await asyncio.sleep(0.02)
    assert scene.desk.state.phase is phase
    assert sentence in scene.desk.state.end_text
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


def managed(scene: Scene, *states: str, **verbs: list[dict[str, Any]]) -> None:
    """A managed job that goes through these states."""
    found = SkyRequest(kind="skypilot", cluster="tm", task=TASK, managed=True)
    launch_order.write(scene.desk.run_dir, found)
    jobs = [{"job": 3, "name": "tm", "state": state, "recoveries": 0, "why": None} for state in states]
    usual: dict[str, list[dict[str, Any]]] = {
        "managed_launch": [{"said": ["⚙︎ Managed job submitted\n"], "data": {"job": 3}}],
        "managed_jobs": [{"data": [job]} for job in jobs],
        "managed_tail": [{"said": ["loss 1.5\n"], "hang": True}],
        "managed_cancel": [{"data": True}],
    }
    scene.answers(**{**usual, **verbs})


@pytest.mark.parametrize(
    ("last", "phase"),
    [("SUCCEEDED", RunPhase.SUCCEEDED), ("FAILED_SETUP", RunPhase.FAILED), ("CANCELLED", RunPhase.STOPPED)],
)
async def test_a_managed_job_ends_as_skypilot_says(scene: Scene, last: str, phase: RunPhase) -> None:
    managed(scene, "STARTING", "RUNNING", "RECOVERING", last)
    await scene.launch()
    assert scene.desk.state.phase is phase
    assert f"managed job 3 ended as {last}" in scene.desk.state.end_text
    cluster = scene.desk.state.cluster
    assert cluster is not None
    assert (cluster.managed, cluster.job, cluster.state) == (True, 3, last)
    assert stages(scene.desk) == {"provision": True, "start": True}
    assert "loss 1.5" in scene.log


async def test_text_that_comes_in_pieces_is_whole_lines_without_secrets(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SkyPilot prints a line in several pieces, and the hub has the secrets of the job."""
    monkeypatch.setenv("JOB_PASSWORD", "swordfish42")
    pieces = [
        "login of sword",
        "\x1b[1mfish",
        "42 with hf_abcdef",
        "ghijklmnopqrst\x1b[0m",
        "\n",
        "loss ",
        "1.5\n",
    ]
    managed(scene, "RUNNING", "SUCCEEDED", managed_launch=[{"said": pieces, "data": {"job": 3}}])
    await scene.launch()
    assert scene.log == "login of *** with ***\nloss 1.5\nloss 1.5\n"


async def stopped(scene: Scene) -> None:
    """Stop the run of a managed job once that has started."""
    task = asyncio.create_task(scene.launch())
    while "start" not in stages(scene.desk):
        await asyncio.sleep(0.01)
    scene.desk.stop_asked.set()
    await task


async def test_a_stop_cancels_a_managed_job(scene: Scene) -> None:
    managed(scene, "RUNNING", "CANCELLED")
    await stopped(scene)
    assert scene.desk.state.phase is RunPhase.STOPPED
    assert scene.desk.state.end_text == "managed job 3 ended as CANCELLED"
    assert [asked["args"] for asked in scene.asked("managed_cancel")] == [{"job": 3}]


async def test_a_managed_job_that_takes_long_to_be_cancelled_is_called_so(scene: Scene) -> None:
    managed(scene, "RUNNING", "CANCELLING")
    await stopped(scene)
    assert scene.desk.state.phase is RunPhase.STOPPED
    text = "managed job 3 was ordered to stop and is still CANCELLING: `sky jobs queue` shows its end"
    assert scene.desk.state.end_text == text


async def test_a_managed_job_has_no_cluster_to_take_down(scene: Scene) -> None:
    managed(scene, "RUNNING")
    found = cluster_launch.cloud_of(scene.desk)
    assert found is not None
    with pytest.raises(CloudError, match="takes the cluster of a managed job down itself"):
        await found.down("tm")
