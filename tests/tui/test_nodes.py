"""Runs on several nodes: what the rows say of nodes, launches, costs, and of what a key would do."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
import scripted as play
import several
from each import for_each
from test_rows import line_of, text_of

from distui.runners.hub.sky_process import Candidate
from distui.runners.logs.levels import Level
from distui.runners.run.commands import Down, Restart, SetAutostop, SetNccl, Stop
from distui.runners.run.model import (
    HUB,
    ClusterChanged,
    LinkChanged,
    LinkState,
    LogGrew,
    RunEnded,
    RunPhase,
    Stage,
    StageChanged,
)
from distui.runners.run.state import RunState
from distui.tui.rows import confirm
from distui.tui.rows.attempts import end_rows
from distui.tui.rows.banner import banner_rows
from distui.tui.rows.candidates import candidate_rows, candidate_table
from distui.tui.rows.command_line import parse
from distui.tui.rows.frame import (
    Frame,
    LinkPhase,
    LinkStatus,
    ViewOptions,
    fit_name,
    names,
    silent,
)
from distui.tui.rows.glyphs import row_width
from distui.tui.rows.gpu_map import gpu_map
from distui.tui.rows.header import what_row
from distui.tui.rows.log import choices, files_for, label_of
from distui.tui.rows.log_lines import LogLine, log_row
from distui.tui.rows.run_status import (
    failure,
    launch_rows,
    launch_title,
    launching,
    no_cluster,
    remains,
)
from distui.tui.rows.tables import rank_table
from distui.tui.rows.typed_commands import CommandError


def frame_of(events: Iterable[several.Told], now: float = play.NOW, **view: object) -> Frame:
    state = RunState().apply_all(several.stamped(events))
    link = LinkStatus(LinkPhase.FOLLOWING, play.BEGAN)
    return Frame(state, link, now, now, ViewOptions(**view))  # type: ignore[arg-type]


def test_a_lost_node_says_how_long_and_when_again_and_shows_no_old_values() -> None:
    _, first, second, *_ = gpu_map(frame_of(several.lost()), 78, 8).rows
    assert "c1 █97%" in line_of(first)
    assert "✖ c2 no answer 12 s, next try in 3 s" in line_of(first), "in the list beside the map"
    assert "✖c2 ?     ?     ?     ?" in line_of(second)
    table = rank_table(frame_of(several.lost()), 78).rows
    assert "c1" in line_of(table[0])
    assert any("97%" in text and style == "text" for text, style in table[0])
    assert "c2" in line_of(table[4])
    assert all(style == "stale" for text, style in table[4] if "%" in text), "the last values, dim"


def test_only_one_row_counts_the_seconds_of_a_lost_node() -> None:
    before, after = (frame_of(several.lost(), now=play.NOW + more) for more in (0.0, 1.0))
    for old, new in (
        (gpu_map(before, 78, 8).rows, gpu_map(after, 78, 8).rows),
        (rank_table(before, 78).rows, rank_table(after, 78).rows),
        (banner_rows(before, 78, 6), banner_rows(after, 78, 6)),
    ):
        changed = [line_of(row) for row, was in zip(new, old, strict=True) if row != was]
        assert all("c2" in line for line in changed)
        assert len(changed) <= 1


def test_the_banner_says_why_a_node_is_lost() -> None:
    assert several.REFUSED in text_of(banner_rows(frame_of(several.lost()), 120, 6))


def test_the_status_line_counts_nodes_and_dollars() -> None:
    found = line_of(what_row(frame_of(several.lost()), 200))
    assert "1 of 2 nodes" in found
    assert "$105.15 at $196.64/h" in found
    assert "so far" not in found
    assert "autostop 30 min" in found
    assert "cluster" not in found
    init = msgspec.structs.replace(several.CLUSTER, state="INIT", price_per_hour=None)
    found = line_of(what_row(frame_of([*several.running(), (125, HUB, ClusterChanged(init))]), 200))
    assert "cluster INIT" in found
    assert "$" not in found


@for_each("width", [60, 80, 120, 200])
def test_the_status_line_of_several_nodes_fits(width: int) -> None:
    assert row_width(what_row(frame_of(several.lost()), width)) <= width


def test_names_lose_what_all_hosts_share() -> None:
    def named(*hosts: str) -> dict[int, str]:
        state = frame_of(several.running()).state
        state.nodes[0].host, state.nodes[1].host = hosts
        return names(state)

    assert named("gpu-a-0001.lab.example", "gpu-a-0002.lab.example") == {0: "gpu-a-0001", 1: "gpu-a-0002"}
    assert fit_name("gpu-a-0002", 7) == "…a-0002"
    assert named("gpu-a-0001.lab.example", "gpu-a-0001.other.example")[1] == "gpu-a-0001.other.example"
    assert named("10.0.0.1", "") == {0: "10.0.0.1", 1: "node 1"}


def test_a_launch_shows_its_stages_its_nodes_and_what_a_key_does() -> None:
    frame = frame_of(several.launching())
    assert launching(frame.state)
    assert launch_title(frame.state) == "launch · 2 nodes · aws/us-east-1"
    rows = launch_rows(frame, 78)
    found = text_of(rows)
    assert "● provision   1 min 12 s  Instances are up" in found
    assert "◌ setup       41 s        Job submitted, ID: 1" in found
    assert "· start" in found
    assert "c2          ◌ connecting 4 s" in found
    words = " ".join(found.split())
    assert "x gives the launch up; cluster minigpt-1a2b3c4d stays and is billed ($196.64/h" in words
    assert max(map(row_width, rows)) <= 78


def test_a_hub_that_has_nothing_to_tell_is_not_old() -> None:
    early = [line for line in several.launching() if line[1] == HUB]
    frame = frame_of(early)
    frame = Frame(frame.state, frame.link, frame.now, frame.now - 60)
    assert "no message" not in text_of(banner_rows(frame, 78, 6))
    assert "old" not in line_of(what_row(frame, 200))
    talking = frame_of(several.running())
    talking = Frame(talking.state, talking.link, talking.now, talking.now - 60)
    assert "no message" in text_of(banner_rows(talking, 78, 6))


def test_a_launch_that_found_no_nodes_says_where_there_are_some() -> None:
    frame = frame_of(several.refused())
    why = failure(frame.state)
    assert why is not None
    assert why.cause.endswith("InsufficientInstanceCapacity)")
    assert why.elsewhere.startswith("--on gcp/us-central1 has them (H100:8 a3-highgpu-8g")
    found = " ".join(text_of(launch_rows(frame, 78)).split())
    assert "failed at provision: no such nodes are free there now" in found
    assert "nothing: no cluster is left, nothing is billed" in found
    assert "$176.31 per hour): ^n, place" in found


def test_a_launch_that_left_a_cluster_says_that_it_is_paid_for() -> None:
    frame = frame_of(several.setup_failed())
    why = failure(frame.state)
    assert why is not None
    assert why.cause == "setup failed on minigpt-1a2b3c4d: launch.log has its output"
    found = " ".join(text_of(launch_rows(frame, 78)).split())
    assert "cluster minigpt-1a2b3c4d stays and may be billed (SkyPilot names no price) until :down" in found


def test_an_unknown_wording_of_a_failure_loses_nothing() -> None:
    text = "something; else (with; all) kinds; of: marks; --on nowhere"
    events = several.refused()[:-4]
    events += [(90, HUB, StageChanged(Stage.PROVISION, "failed", text))]
    frame = frame_of([*events, (91, HUB, RunEnded(RunPhase.FAILED, 1, text))])
    why = failure(frame.state)
    assert why is not None
    assert (why.cause, why.elsewhere, why.left) == (text, "", "")


def test_a_managed_job_says_what_is_not_seen() -> None:
    frame = frame_of(several.managed())
    found = " ".join(text_of(launch_rows(frame, 78)).split())
    assert "ranks, GPUs, steps and restarts are not seen" in found
    assert "x cancels the managed job" in found
    assert "sync" not in found
    assert "managed job RUNNING, logs only" in line_of(what_row(frame, 120))


def test_hosts_of_ones_own_are_told_of_one_by_one() -> None:
    frame = frame_of(several.on_hosts())
    found = text_of(launch_rows(frame, 78))
    assert "provision" not in found
    assert "● 7 s" in found
    assert "◌ 2 min 3 s" in found
    assert [line.split()[0] for line in found.splitlines() if "alpha" in line or "beta" in line] == [
        "alpha",
        "beta",
    ]
    assert "node 0" not in found
    assert "connecting" not in found, "before anything was started there"
    assert "what was started on the hosts is ended" in " ".join(found.split())
    assert remains(frame.state, play.NOW) == ""


def test_a_launch_on_hosts_that_failed_connects_no_more() -> None:
    why = "beta refuses ssh connections"
    failed = [
        *several.on_hosts(),
        (125.0, HUB, StageChanged(Stage.SYNC, "failed", why)),
        (125.1, HUB, RunEnded(RunPhase.FAILED, 1, f"the launch failed: {why}")),
    ]
    found = text_of(launch_rows(frame_of(failed), 78))
    assert why in found
    assert "connecting" not in found


def test_a_restart_with_a_lost_node_offers_two_ways() -> None:
    state = frame_of(several.lost()).state
    assert silent(state) == [1]
    asked = confirm.restart(state, Restart("x", {"LR": "1"}), play.NOW)
    assert asked.verb == "only if all answer"
    assert asked.other_verb == "go on without c2"
    assert asked.other == Restart("x", {"LR": "1"}, reachable=True)
    found = text_of(asked.lines)
    assert f"✖ c2: {several.REFUSED}" in found
    assert "without c2 the ranks wait until there are 2 nodes" in found
    elastic = confirm.restart(frame_of(several.lost(least=1)).state, Restart("x"), play.NOW)
    assert "without c2: elastic, with 1 node (at least 1)" in text_of(elastic.lines)
    whole = confirm.restart(frame_of(several.running()).state, Restart("x"), play.NOW)
    assert (whole.other, whole.verb) == (None, "restart")


def test_a_level_by_restart_names_who_does_not_answer() -> None:
    asked = confirm.nccl(frame_of(several.lost()).state, SetNccl("x", "INFO", restart=True), play.NOW)
    assert "✖ c2" in text_of(asked.lines)
    assert "without c2 the ranks wait until there are 2 nodes" in text_of(asked.lines)
    assert (asked.verb, asked.other_verb) == ("only if all answer", "go on without c2")
    assert asked.other == SetNccl("x", "INFO", restart=True, reachable=True)
    live = confirm.nccl(frame_of(several.lost()).state, SetNccl("x", "INFO"), play.NOW)
    assert (live.verb, live.other) == ("set it", None)


def test_stop_says_that_the_cluster_stays_and_is_paid_for() -> None:
    found = text_of(confirm.stop(frame_of(several.running()).state, Stop("x"), play.NOW).lines)
    assert "minigpt-1a2b3c4d is billed ($196.64/h" in found
    assert "goes down after 30 min without a job; :down takes it down now" in found
    early = confirm.stop(frame_of(several.launching()).state, Stop("x"), play.NOW)
    assert early.title == "Give up the launch of minigpt?"
    assert "until :down takes it down" in text_of(early.lines)


def test_down_says_what_is_lost_and_wants_the_name() -> None:
    state = frame_of(several.running()).state
    asked = confirm.down(state, Down("x", ""), play.NOW)
    assert asked.typed == "minigpt-1a2b3c4d"
    found = text_of(asked.lines)
    for part in (
        "minigpt is on it: its ranks are stopped first",
        "all on its disks",
        "$196.64/h",
        "on 2 nodes (c1, c2)",
    ):
        assert part in found
    assert no_cluster(state) == ""
    assert "managed job" in no_cluster(frame_of(several.managed()).state)
    assert "no cluster" in no_cluster(frame_of(several.on_hosts()).state)


def test_autostop_says_when_and_what_goes_with_it() -> None:
    state = frame_of(several.running()).state
    assert "after 30 minutes without a job" in text_of(
        confirm.autostop(state, SetAutostop("x", 30), play.NOW).lines
    )
    assert "it stays, and is billed" in text_of(
        confirm.autostop(state, SetAutostop("x", None), play.NOW).lines
    )


def test_the_line_speaks_of_clusters() -> None:
    assert parse("down", lambda: "x").command == Down("x", "")
    assert parse("autostop 30", lambda: "x").command == SetAutostop("x", 30)
    assert parse("autostop off", lambda: "x").command == SetAutostop("x", None)
    for line, why in (
        ("down now", "asks for the cluster's name"),
        ("autostop", "autostop 30"),
        ("autostop 0", "off"),
    ):
        with pytest.raises(CommandError, match=why):
            parse(line, lambda: "x")


def test_the_end_of_a_run_is_not_the_end_of_its_cluster() -> None:
    ended = [*several.running(), (125, HUB, RunEnded(RunPhase.SUCCEEDED, 0, "done"))]
    assert "is billed" in text_of(end_rows(frame_of(ended), 78))
    gone = msgspec.structs.replace(several.CLUSTER, down=True, state="")
    assert "billed" not in text_of(end_rows(frame_of([*ended, (126, HUB, ClusterChanged(gone))]), 78))


def test_a_job_that_distui_did_not_start_has_no_log_of_a_runner() -> None:
    state = RunState()
    assert files_for(state, None, "all") == []
    state.agent_pid = 7
    assert [file.id for file in files_for(state, None, "all")] == ["runner.log"]


def test_logs_of_a_launch_and_of_all_nodes() -> None:
    early = frame_of(several.launching()).state
    assert [file.id for file in files_for(early, None, "all")] == ["launch.log"]
    assert choices(early)[-2:] == ["launch", "service"]
    sizes = {
        "agent.log": 3,
        "node-1/runner.log": 4,
        "node-1/agent.log": 5,
        "node-0/runner.log": 1,
        "launch.log": 9,
    }
    state = frame_of([*several.running(), (125, HUB, LogGrew(sizes))]).state
    found = [file.id for file in files_for(state, None, "all")]
    assert "node-1/attempt-001/rank-7.err" in found
    assert "node-1/runner.log" in found
    assert "launch.log" not in found
    assert [file.id for file in files_for(state, None, "service")] == [
        "agent.log", "node-0/runner.log", "node-1/agent.log", "node-1/runner.log",
    ]  # fmt: skip
    (file,) = [file for file in files_for(state, 7, "err") if file.stream == "err"]
    assert label_of(file, names(state)) == "c2 r7 err"
    assert label_of(file, {0: "c1"}) == "r7 err"


def test_a_link_that_is_up_again_shows_values_again() -> None:
    events = [
        *several.lost()[:-1],
        (124, 1, LinkChanged(LinkState.UP, "c2")),
        *several.sampled(1, 4, 124.9),
    ]
    shown = text_of(gpu_map(frame_of(events), 78, 8).rows)
    assert "no answer" not in shown
    assert shown.count("█97%") == 2


def test_a_glyph_is_as_wide_as_it_looks() -> None:
    row = log_row(LogLine("\u2699\ufe0e Launching on Slurm", "launch", Level.NONE), False, None, 0)
    assert line_of(row) == " \u2699 Launching on Slurm"


def test_a_lost_host_is_named_once() -> None:
    why = "c2 does not answer: is it up, and the network between?"
    told = [*several.running(), (125.0, 1, LinkChanged(LinkState.LOST, "c2", why))]
    assert text_of(banner_rows(frame_of(told), 120, 6)).strip() == f"✖ {why}"


def test_the_verb_prints_the_candidates_of_the_launch_form() -> None:
    offers = [
        Candidate("slurm/lab", "", "64", "512", "H100:8", None, True),
        Candidate("aws/us-east-1", "p5.48xlarge", "192", "2048", "H100:8", 196.64, False),
    ]
    assert candidate_table(offers) == [
        "infra          instance     CPUs    GB  GPUs       $/h",
        "slurm/lab      -              64   512  H100:8     n/a  first",
        "aws/us-east-1  p5.48xlarge   192  2048  H100:8  196.64",
    ]
    assert (
        "".join(text for text, _ in candidate_rows(offers)[1]).split() == candidate_table(offers)[2].split()
    )
