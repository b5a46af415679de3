"""An interpreter whose rank of a pair goes wrong at a chosen place: the real one, with a line changed on its way in."""

from __future__ import annotations

import sys
from pathlib import Path

from distui.runners.doctor.session import TORCH_CHECK

REDUCING = '        stage = "all-reduce"\n'
REDUCE = "    torch.distributed.all_reduce(values)\n"
FAULTS = {
    "killed": (REDUCING, f"{REDUCING}        os.kill(os.getpid(), 9)\n"),
    "stopped": (REDUCING, f"{REDUCING}        os.kill(os.getpid(), 19)\n"),
    "wrong": (REDUCE, f"    values *= 3\n{REDUCE}"),
    "talkative": (REDUCING, f"        print('no JSON at all')\n{REDUCING}"),
}
WRAPPER = """\
#!{python}
import sys
read = sys.stdin.buffer
text = read.read(int(read.readline())).decode()
assert {old!r} in text
exec(compile(text.replace({old!r}, {new!r}), "torch_check.py", "exec"))
"""


def python(folder: Path, fault: str) -> str:
    """Path of an interpreter with that fault."""
    old, new = FAULTS[fault]
    assert old in TORCH_CHECK.read_text()
    path = folder / fault
    path.write_text(WRAPPER.format(python=sys.executable, old=old, new=new))
    path.chmod(0o755)
    return str(path)
