"""The examples that ship. chargpt.py trains, saves, resumes under another strategy, and ends when it is asked to."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from ports import free_port
from starts import EXAMPLES, as_rank, environment, finished, started, torchrun

pytestmark = pytest.mark.torch
SMALL = ["--layers", "2", "--width", "64", "--batch", "4", "--block", "32", "--checkpoint-dir", "saved"]


def losses(output: str) -> dict[int, float]:
    """Step → loss, from the lines that people read."""
    return {int(s): float(v) for s, v in re.findall(r"^step (\d+) loss ([\d.]+) \d+ tok/s$", output, re.M)}


def saved(folder: Path) -> list[str]:
    """The files in the checkpoint folder."""
    return sorted(path.name for path in (folder / "saved").iterdir())


@pytest.mark.long
def test_torn_checkpoint_is_passed_over_and_the_run_goes_on_as_if_unbroken(tmp_path: Path) -> None:
    args = [*SMALL, "--steps", "40", "--checkpoint-every", "10", "--log-every", "1"]
    env = environment(DISTUI_STRATEGY="fsdp2")
    whole = finished(torchrun(EXAMPLES / "chargpt.py", *args), env, tmp_path)
    before = losses(whole)
    assert "rank 1 of 2: fsdp2 on cpu" in whole
    assert list(before) == list(range(1, 41))
    assert before[40] < 0.8 * before[1]
    assert saved(tmp_path) == ["step-00000030.pt", "step-00000040.pt"]

    torn = tmp_path / "saved" / "step-00000040.pt"
    os.truncate(torn, torn.stat().st_size // 2)
    (tmp_path / "saved" / "step-00000050.pt").touch()  # as a power cut leaves it
    torch.save([1], tmp_path / "saved" / "step-00000060.pt")
    again = finished(torchrun(EXAMPLES / "chargpt.py", *args), environment(), tmp_path)
    assert "passed over saved/step-00000040.pt" in again
    assert "passed over saved/step-00000050.pt: EOFError\n" in again
    assert "passed over saved/step-00000060.pt: it holds no checkpoint\n" in again
    assert "resumed from step 30" in again
    assert losses(again) == pytest.approx({step: before[step] for step in range(31, 41)}, abs=0.01)
    assert "step-00000040.pt" in saved(tmp_path), "higher numbers of damaged files did not push it out"


@pytest.mark.long
def test_alone_it_is_single_and_wrong_presets_are_one_sentence(tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, EXAMPLES / "chargpt.py", *SMALL, "--steps", "20"]
    output = finished(command, environment(), tmp_path)
    assert "rank 0 of 1: single on cpu" in output
    assert saved(tmp_path) == ["step-00000020.pt"]
    with started(command, environment(DISTUI_STRATEGY="fsdp3"), tmp_path) as process:
        output = process.communicate()[0]
    assert process.returncode == 78, "settings that cannot work"
    assert (
        output
        == "chargpt: DISTUI_STRATEGY is 'fsdp3'; parallelize() knows single, ddp, zero1, fsdp1, fsdp2\n"
    )


@contextmanager
def two_ranks(strategy: str, folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Two ranks without a launcher, past their fifth step, that would train for ever."""
    args = ["--steps", "1000000", "--checkpoint-every", "0", "--log-every", "5", "--step-delay", "0.02"]
    command: list[str | Path] = [sys.executable, EXAMPLES / "chargpt.py", *SMALL, *args]
    port = free_port()
    with ExitStack() as stack:
        envs = [as_rank(rank, 2, port, strategy) for rank in range(2)]
        ranks = [stack.enter_context(started(command, env, folder)) for env in envs]
        assert ranks[0].stdout is not None
        if not any(line.startswith("step 5 ") for line in ranks[0].stdout):
            pytest.fail("rank 0 ended before its fifth step")
        yield ranks


@pytest.mark.long
def test_sigterm_to_all_saves_and_ends_with_0(tmp_path: Path) -> None:
    with two_ranks("fsdp2", tmp_path) as ranks:
        for rank in ranks:
            rank.terminate()
        outputs = [rank.communicate()[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], outputs
        assert len(saved(tmp_path)) == 1


@pytest.mark.long
def test_sigterm_where_the_other_rank_is_gone(tmp_path: Path) -> None:
    with two_ranks("ddp", tmp_path) as ranks:
        ranks[0].send_signal(signal.SIGSTOP)  # it hears of both at once
        os.waitid(os.P_PID, ranks[0].pid, os.WSTOPPED)
        ranks[1].kill()
        ranks[0].terminate()
        ranks[0].send_signal(signal.SIGCONT)
        output = ranks[0].communicate()[0]
        assert ranks[0].returncode == 0, output
        assert len(saved(tmp_path)) == 1


@pytest.mark.long
def test_sigterm_to_one_rank_is_no_success_of_the_other(tmp_path: Path) -> None:
    with two_ranks("ddp", tmp_path) as ranks:
        ranks[1].terminate()
        outputs = [rank.communicate()[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [75, 0], outputs
        assert len(saved(tmp_path)) == 1


def test_plain_ddp_does_not_know_distui() -> None:
    source = (EXAMPLES / "plain_ddp.py").read_text()
    assert not re.search(r"^\s*(from|import) .*(distui|parallelize)", source, re.M)
