"""What a command line says about a job: which launcher it is, which script the ranks run. Pure."""

from __future__ import annotations

import os.path
import shlex
from collections.abc import Sequence

from ..logs.clean import clean_text

_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torch.distributed.launcher": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.launch": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
}
_PROGRAMS = {"torchrun": "torchrun", "accelerate": "accelerate", "accelerate-launch": "accelerate"}
_PROGRAMS |= {"deepspeed": "deepspeed", "srun": "srun", "slurmstepd": "srun"}
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def launcher_kind(argv: Sequence[str]) -> str | None:
    """ "torchrun", "accelerate", "deepspeed" or "srun" where this is the command line of one; else None.

    Slurm's step daemon names itself `slurmstepd: [1234.0]`.
    """
    if not argv:
        return None
    first = os.path.basename(argv[0].split(":")[0].strip())
    if first in _PROGRAMS:
        return _PROGRAMS[first]
    module, script = _entry(argv)
    if module is not None:
        return _MODULES.get(module)
    if script is not None and script.endswith("torch/distributed/run.py"):
        return "torchrun"
    return _PROGRAMS.get(os.path.basename(script)) if script else None


def command_of(argv: Sequence[str]) -> str:
    """What a rank runs, in one line: script or `-m module` and arguments, without the interpreter."""
    start = _start(argv)
    return clean_text(shlex.join(argv[start:] or argv))


def name_of(argv: Sequence[str]) -> str:
    """A short name: the script's without its ending, the module's last part, else the program's."""
    module, script = _entry(argv)
    if module is not None:
        return clean_text(module.rpartition(".")[2])
    text = script or (argv[0] if argv else "")
    return clean_text(os.path.splitext(os.path.basename(text))[0]) or "job"


def _entry(argv: Sequence[str]) -> tuple[str | None, str | None]:
    """(module, None) of `python -m module`, (None, script) of `python script` or `script`; else neither."""
    start = _start(argv)
    if start == 0 or start >= len(argv):
        return None, argv[0] if start == 0 and argv else None
    if argv[start] == "-m":
        return (argv[start + 1], None) if start + 1 < len(argv) else (None, None)
    return None, None if argv[start] == "-c" else argv[start]


def _start(argv: Sequence[str]) -> int:
    """Where script, `-m` or `-c` stands in a Python command line; 0 for any other program."""
    if not argv or not os.path.basename(argv[0]).startswith(("python", "pypy")):
        return 0
    at = 1
    while at < len(argv) and argv[at].startswith("-") and argv[at] not in ("-m", "-c", "-"):
        at += 2 if argv[at] in _WITH_VALUE else 1
    return at
