"""Where the checks run, what a check is, and how it is told."""

from __future__ import annotations

import subprocess
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from e2e.runs import World


class LeftOut(Exception):
    """The check cannot be made here; the text says why."""


@dataclass(frozen=True, slots=True)
class Site:
    """A machine and a user of its own."""

    world: World
    gpus: tuple[str, ...]
    """Names, in NVML's order; () in a rehearsal."""

    @property
    def rehearsal(self) -> bool:
        """Whether gloo stands in for NCCL."""
        return not self.gpus

    @property
    def ranks(self) -> int:
        """One a GPU, and never fewer than two: on a machine with one GPU they share it, see jobs.BEGIN."""
        return max(2, len(self.gpus))

    @property
    def several(self) -> tuple[str, ...]:
        """Options of a launch of that many ranks."""
        shared = ("--env", "NCCL_MULTI_RANK_GPU_ENABLE=1") if len(self.gpus) == 1 else ()
        return ("--nproc-per-node", str(self.ranks), *shared)

    def needs_gpu(self, least: int = 1) -> None:
        """Raises LeftOut where there are fewer."""
        if len(self.gpus) < least:
            raise LeftOut(f"needs {least} GPU{'s' * (least > 1)}")


Check = Callable[[Site], str]
"""Does something and says what was seen. Raises AssertionError where that is not what it should be, or LeftOut."""


@dataclass(frozen=True, slots=True)
class Seen:
    """How one check went."""

    name: str
    outcome: str
    """"ok", "FAILED" or "left out"."""
    seconds: float
    text: str


def make(name: str, check: Check, site: Site) -> Seen:
    """Run one check; whatever goes wrong in it is its outcome, so that the others are made, too."""
    began = time.monotonic()
    try:
        outcome, text = "ok", check(site)
    except LeftOut as why:
        outcome, text = "left out", str(why)
    except (
        AssertionError,
        OSError,
        ValueError,
        LookupError,
        TypeError,
        subprocess.SubprocessError,
    ) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        outcome, text = "FAILED", f"{type(error).__name__} at {place.name}:{place.lineno}: {error}"
    finally:
        site.world.stop_all()
    return Seen(name, outcome, time.monotonic() - began, " ".join(text.split()))
