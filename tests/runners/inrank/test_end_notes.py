"""What a rank's script reported in its last second, which no agent asks for any more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .inrank_rig import rank

pytestmark = pytest.mark.real

TRACKER = "class Run:\n    def log(self, metrics, step=None):\n        pass\n"
LOGS = "from trackio.run import Run\nfor step in (1, 2):\n    Run().log({'loss': 3.0 - step, 'bad': 'text'}, step)\n"


@pytest.mark.parametrize(("last", "ending"), [("", "end"), ("raise ValueError('x')\n", "exc")])
def test_the_last_values_are_noted_at_the_end(tmp_path: Path, last: str, ending: str) -> None:
    (tmp_path / "trackio").mkdir()
    (tmp_path / "trackio" / "__init__.py").touch()
    (tmp_path / "trackio" / "run.py").write_text(TRACKER)
    with rank(tmp_path, LOGS + last) as one:
        assert one.ends() == (1 if last else 0), one.read("err")
    signals = json.loads(one.read(ending))["signals"]
    values = signals["trackers"]["trackio"]["values"]
    assert {name: (value, step) for name, (value, step, _) in values.items()} == {"loss": (1.0, 2)}


def test_a_script_that_reports_nothing_notes_nothing(tmp_path: Path) -> None:
    with rank(tmp_path, "pass\n") as one:
        assert one.ends() == 0
    assert json.loads(one.read("end"))["signals"] is None
