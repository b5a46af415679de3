"""The plain script, as the end-to-end tests need it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starts import EXAMPLES, environment, finished, torchrun

pytestmark = pytest.mark.torch


@pytest.mark.long
def test_plain_ddp_trains_and_leaves(tmp_path: Path) -> None:
    command = torchrun(EXAMPLES / "plain_ddp.py", "--steps", "60", "--step-delay", "0")
    output = finished(command, environment(), tmp_path)
    losses = [float(loss) for loss in re.findall(r"step \d+ loss ([\d.]+)", output)]
    assert len(losses) == 60
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])


def test_plain_ddp_does_not_know_distui() -> None:
    source = (EXAMPLES / "plain_ddp.py").read_text()
    assert not re.search(r"^\s*(from|import) .*(distui|parallelize)", source, re.M)
