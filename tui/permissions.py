"""Enables and disables actions: `--readonly` and the end of a run disable those that change it, a browser others."""

from __future__ import annotations

from .keys import MUTATING
from .open_run import OpenRun
from .rows.frame import LinkPhase
from .rows.run_status import launching

OF_NO_RUN = ("launch", "rerun", "remove", "note", "tags")
"""Actions that do not change the displayed run; only `--readonly` disables them."""

OF_ACCOUNT = ("runs", "compare", "copy", "copy_chosen", "pager", "shell", "suspend_cockpit")
"""Actions that use other runs, files or programs of this account; they are disabled in a browser."""


class Permissions:
    """Answers for each action whether it is enabled now."""

    def __init__(self, readonly: bool, in_browser: bool = False) -> None:
        """Create it; `readonly` is the option `--readonly`, `in_browser` that of CockpitApp."""
        self.forced_readonly = readonly
        self._in_browser = in_browser
        self.run: OpenRun | None = None

    @property
    def readonly(self) -> bool:
        """Whether the displayed run cannot be changed."""
        return self.forced_readonly or (self.run is not None and self.run.follower.readonly)

    def allowed(self, action: str) -> bool:
        """Whether an action is enabled, by its name."""
        if action not in MUTATING:
            return not (self._in_browser and action in OF_ACCOUNT)
        if action in OF_NO_RUN:
            return not self.forced_readonly
        run = self.run
        if run is None:
            return not self.forced_readonly
        if run.state.phase.ended:
            return action == "restart" and not run.watched and not self.forced_readonly
        if self.readonly:
            return False
        return action not in ("restart", "nccl") or not _starting(run)

    def refusal(self) -> str:
        """Return why an action is disabled."""
        if self.run is not None and self.run.watched:
            return "distui did not start this job: it can only be watched"
        if self._in_browser:
            return "read-only: a browser can only look at the run"
        if self.run is not None and self.run.state.phase.ended and not self.forced_readonly:
            return "this run has ended: r runs it again, and e in that dialog changes its variables"
        return "read-only: this cannot change the run"


def _starting(run: OpenRun) -> bool:
    """Whether the run has no ranks yet."""
    return launching(run.state) and run.follower.status.phase is not LinkPhase.LOST
