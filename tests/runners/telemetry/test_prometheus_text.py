"""The text that Prometheus reads of a run: in its text format, with what is known and nothing else."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from distui.presets.finding import Finding
from distui.runners.agent.metrics_writer import KEPT_S, sweep, write
from distui.runners.run.model import RankPhase, RankPlace, RunPhase
from distui.runners.run.samples import Gpu, RankSample, TrainingSample
from distui.runners.run.state import Attempt, Node, Rank, RunState
from distui.runners.telemetry import export_settings
from distui.runners.telemetry.exported_samples import FAMILIES, samples_of
from distui.runners.telemetry.prometheus_text import text_of
from distui.runners.telemetry.quantity import MetricFamily

NOW = 1_700_000_000.0
HOSTILE = 'ev"il\\\n{}#\x1b[31m\ud800,é'
Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def state(**gpu: float) -> RunState:
    """A run of 2 ranks on GPU 0 and a rank that has ended."""
    made = RunState(run="r1", name=HOSTILE, phase=RunPhase.RUNNING, began=NOW - 60)
    made.attempts.append(Attempt(2, NOW - 50, "failure", 3, {}, ()))
    made.nodes[0] = Node(
        0,
        host="box",
        gpus=(Gpu(0, "GPU-0", "NVIDIA H100", **gpu), Gpu(1, "GPU-1", "NVIDIA H100", util=7.0)),  # type: ignore[arg-type]
        gpu_sampled=NOW - 1,
    )
    for number in range(3):
        sample = RankSample(number, 10 + number, step=5 + number, step_s=0.25, gpu=0, cpu_percent=150.0)
        rank = Rank(RankPlace(number, number), RankPhase.RUNNING, sample=sample, sampled=NOW - 1)
        made.ranks[number] = rank
    made.ranks[2].phase = RankPhase.FAILED
    made.training[0] = TrainingSample(0, NOW - 2, step=40, mfu=41.5, not_finite={"loss": "nan"})
    made.training[1] = TrainingSample(1, NOW - 55, loss=1.5)  # of the attempt before
    made.failures = 1
    return made


def values(text: bytes) -> Values:
    """What a parser of the text format reads."""
    read: Values = {}
    for family in text_string_to_metric_families(text.decode()):
        assert family.type in ("gauge", "counter"), f"{family.name} is {family.type}"
        assert family.samples, f"{family.name} has a type and no value"
        for sample in family.samples:
            assert sample.timestamp is None
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in read, "a series twice makes Prometheus refuse the whole scrape"
            read[key] = sample.value
    return read


def of(read: Values, name: str, **labels: str) -> list[float]:
    wanted = set(labels.items())
    return [value for (each, has), value in read.items() if each == name and wanted <= set(has)]


def test_what_is_known_is_there_and_what_is_unknown_is_not() -> None:
    read = values(text_of(samples_of(state(util=98.0, mem_used=3 << 30, sm_active=50.0), "r1", 0, NOW)))
    assert of(read, "distui_run_state", state="running", run="r1") == [1]
    assert sum(of(read, "distui_run_state")) == 1
    assert of(read, "distui_run_attempt") == [2]
    assert of(read, "distui_run_failures_total") == [1]
    assert of(read, "distui_ranks", state="running") == [2]
    assert of(read, "distui_ranks", state="failed") == [1]
    assert of(read, "distui_rank_steps_total") == [5, 6]  # not that of the rank that failed
    assert of(read, "distui_rank_step_duration_seconds", rank="1") == [0.25]
    assert of(read, "distui_rank_cpu_cores", rank="1") == [1.5]
    assert of(read, "distui_rank_memory_usage_bytes") == []
    assert [math.isnan(value) for value in of(read, "distui_training_loss")] == [True]
    assert of(read, "distui_training_mfu_ratio", rank="0") == [0.415]
    assert of(read, "DCGM_FI_DEV_GPU_UTIL") == [98]  # GPU 1 is not the run's
    assert of(read, "DCGM_FI_DEV_FB_USED", UUID="GPU-0", modelName="NVIDIA H100", Hostname="box") == [3072]
    assert of(read, "DCGM_FI_PROF_SM_ACTIVE", gpu="0") == [0.5]
    assert of(read, "DCGM_FI_DEV_POWER_USAGE") == []
    assert of(read, "distui_run_exit_code") == []


def test_a_name_with_anything_in_it_is_one_label() -> None:
    read = values(text_of(samples_of(state(), "r1", 0, NOW)))
    (key,) = [key for key in read if key[0] == "distui_run_info"]
    assert dict(key[1])["name"] == 'ev"il\\\n{}#\ufffd[31m\ufffd,é'


def test_old_samples_are_left_out() -> None:
    for seconds, there in [(2.0, True), (3.0, False)]:
        read = values(text_of(samples_of(state(util=98.0), "r1", 0, NOW + seconds)))
        assert bool(of(read, "DCGM_FI_DEV_GPU_UTIL")) is there
        assert bool(of(read, "distui_rank_steps_total")) is there
        assert bool(of(read, "distui_training_mfu_ratio")) is there
        assert of(read, "distui_training_step") == [40], "how far it is remains true"
        assert of(read, "distui_ranks", state="running") == [2]


def test_counters_are_counters() -> None:
    text = text_of(samples_of(state(), "r1", 0, NOW)).decode()
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    assert {name for name, kind in kinds.items() if kind == "counter"} == {
        "distui_run_failures_total", "distui_rank_steps_total",
    }  # fmt: skip
    for name in kinds:
        assert re.search(rf"^{name}{{", text, re.MULTILINE), f"{name} has a type and no value"


def test_names_and_types_are_those_of_openmetrics_too() -> None:
    """A server that passes them on in OpenMetrics, where a counter's family has no `_total`, needs no other names."""
    text = text_of(samples_of(state(util=98.0), "r1", 0, NOW)).decode()

    class Scraped(Collector):
        def collect(self) -> list[Metric]:
            return list(text_string_to_metric_families(text))

    registry = CollectorRegistry()
    registry.register(Scraped())
    text_again = generate_latest(registry).decode()  # type: ignore[no-untyped-call]
    again = list(openmetrics_families(text_again))  # type: ignore[no-untyped-call]
    assert {family.type for family in again} == {"gauge", "counter"}
    samples = {sample.name for family in again for sample in family.samples}
    assert samples == {name for name, _ in values(text.encode())}


def test_rates_go_when_the_steps_have_stopped() -> None:
    stopped = state(util=98.0)
    for rank in stopped.ranks.values():
        rank.sample = RankSample(rank.place.rank, 10, step=5, still_s=46.0, wait_percent=100.0, gpu=0)
    stopped.training[0] = TrainingSample(0, NOW - 2, step=40, tokens_s=900.0, mfu=41.5, loss=1.5)
    read = values(text_of(samples_of(stopped, "r1", 0, NOW)))
    for gone in ("rank_step_duration_seconds", "training_tokens_per_second", "training_mfu_ratio"):
        assert of(read, f"distui_{gone}") == []
    assert of(read, "distui_rank_collective_wait_ratio") == [1.0, 1.0]
    assert of(read, "distui_training_loss") == [1.5]
    assert of(read, "DCGM_FI_DEV_GPU_UTIL") == [98], "the driver was asked a second ago"


def test_of_an_ended_run_only_what_stays_true() -> None:
    ended = state(util=98.0)
    ended.phase, ended.exit_code = RunPhase.FAILED, 3
    ended.findings["hang", None, None] = Finding("hang", "error", "a rank hangs")
    read = values(text_of(samples_of(ended, "r1", 0, NOW)))
    assert {name for name, _ in read} == {
        "distui_run_info", "distui_run_state", "distui_run_start_time_seconds", "distui_run_attempt",
        "distui_run_failures_total", "distui_run_exit_code", "distui_run_findings",
    }  # fmt: skip
    assert of(read, "distui_run_state", state="failed") == [1]
    assert of(read, "distui_run_exit_code") == [3]
    assert of(read, "distui_run_findings", severity="error") == [1]


def test_a_run_of_which_nothing_is_known_yet() -> None:
    read = values(text_of(samples_of(RunState(), "r1", 0, NOW)))
    assert of(read, "distui_run_state", state="starting") == [1]
    assert of(read, "distui_run_attempt") == []
    assert of(read, "distui_ranks") == []


def documented(family: MetricFamily) -> str:
    """The row of a family in docs/metrics.md."""
    spelling = "attributes of the resource"
    if family.otel is not None:
        unit = f", {family.otel.unit}" if family.otel.unit else ""
        spelling = f"`{family.otel.name}`{unit}"
    return f"| `{family.name}` | {family.about.rstrip('.')} | {spelling} |\n"


def test_the_documentation_has_the_table() -> None:
    page = Path(__file__).parents[3] / "docs/metrics.md"
    begin = "| metric | value | pushed by OTLP as |\n|---|---|---|\n"
    head, _, rest = page.read_text().partition(begin)
    _, _, tail = rest.partition("\n\n")
    wanted = f"{head}{begin}{''.join(map(documented, FAMILIES))}\n{tail}"
    if os.environ.get("DISTUI_WRITE"):
        page.write_text(wanted)
    assert page.read_text() == wanted, (
        "write it anew: DISTUI_WRITE=1 pytest tests/runners/telemetry/test_prometheus_text.py"
    )


def test_a_file_is_replaced_whole_and_everybody_reads_it(tmp_path: Path) -> None:
    path, umask = tmp_path / "distui-r1.prom", os.umask(0o077)
    try:
        path.symlink_to(tmp_path / "victim")
        assert write(path, b"# EOF\n") == ""
    finally:
        os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in tmp_path.iterdir()] == ["distui-r1.prom"]
    assert "No such file or directory" in write(tmp_path / "gone/distui-r1.prom", b"")
    assert not (tmp_path / "gone").exists()


def test_files_of_runs_that_ended_long_ago_go_and_no_others(tmp_path: Path) -> None:
    old, new, other = (tmp_path / name for name in ("distui-a.prom", "distui-b.prom", "raid.prom"))
    link, folder = tmp_path / "distui-c.prom", tmp_path / "distui-d.prom"
    for path in (old, new, other):
        path.write_text("# EOF\n")
    link.symlink_to(other)
    folder.mkdir()
    for path in (old, other):
        os.utime(path, (NOW, NOW))
    sweep(tmp_path, NOW + KEPT_S - 1)
    assert old.exists()
    os.utime(new, (NOW + 100, NOW + 100))
    sweep(tmp_path, NOW + KEPT_S + 1)
    assert sorted(tmp_path.iterdir()) == sorted([new, other, link, folder])
    sweep(tmp_path / "gone", NOW)


def test_what_the_settings_mean() -> None:
    for table, directory, says in [
        ({}, None, ""),
        ({"openmetrics_dir": "/var/lib/x"}, Path("/var/lib/x"), ""),
        ({"openmetrics_dir": "~/x"}, Path.home() / "x", ""),
        ({"openmetrics_dir": "x"}, None, "must be an absolute path (or ~/…)"),
        ({"openmetrics_dir": ""}, None, "must be an absolute path (or ~/…)"),
        ({"openmetrics_dir": "/a\nb"}, None, "must be an absolute path (or ~/…)"),
        ({"openmetrics_dir": 5}, None, "must be an absolute path (or ~/…)"),
        ({"openmetrics_dir": "~nobody-of-that-name/x"}, None, "must be an absolute path (or ~/…)"),
        ({"openmetrics": "/x"}, None, "did you mean openmetrics_dir?"),
        ("/x", None, "must be a section"),
    ]:
        read = export_settings.of_table(table, Path("settings.toml"))
        assert read.directory == directory
        assert len(read.problems) == bool(says)
        assert says in "".join(read.problems)


def test_settings_that_cannot_be_read_export_nothing(tmp_path: Path) -> None:
    path = tmp_path / "distui/settings.toml"
    path.parent.mkdir(mode=0o700)
    path.write_text("[export")
    assert export_settings.load({"XDG_CONFIG_HOME": str(tmp_path)}) == export_settings.MetricsExport()
    path.write_text('[export]\nopenmetrics_dir = "/x"\n')
    assert export_settings.load({"XDG_CONFIG_HOME": str(tmp_path)}).directory == Path("/x")
