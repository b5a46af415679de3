"""Keys of the run screen that ask something of the run: restart, stop, NCCL_DEBUG, profile, stacks, shell."""

from __future__ import annotations

from functools import partial

from ...runners.run.commands import Dump, Profile, Restart, Stop
from ...runners.run.formatting import time_of_day
from ...runners.run.wire.client import new_id
from ..background import background
from ..kept_stacks import Stacks
from ..lending import lend, shell_argv
from ..open_run import OpenRun
from ..rows.findings import culprits
from ..rows.frame import LinkPhase
from ..source import Shell
from .cockpit import Cockpit
from .cockpit_commands import Commands, dumps
from .modal import NcclScreen, WideScreen


class RunKeys:
    """Actions of one run; each that is refused shows the reason."""

    def __init__(self, app: Cockpit, run: OpenRun, commands: Commands) -> None:
        self._app, self._run, self._commands = app, run, commands

    def action_command(self) -> None:
        self._commands.ask_line()

    def action_restart(self) -> None:
        """Restart the worker group; while the agent is lost, reconnect instead; launch an ended run again."""
        if self._run.state.phase.ended:
            self._app.rerun(self._run.id, self._run.state.name)
        elif self._run.follower.status.phase is LinkPhase.LOST:
            self._run.follower.hurry()
        else:
            self._commands.ask(Restart(id=new_id()))

    def action_stop(self) -> None:
        if self._may("stop", "there is nothing to stop"):
            self._commands.ask(Stop(id=new_id()))

    def action_profile(self) -> None:
        """Record a profile of the marked ranks, or of all."""
        if self._may("profile", "there are no ranks to profile"):
            self._commands.ask(Profile(new_id(), self._marked))

    def action_nccl(self) -> None:
        """Open the NCCL_DEBUG dialog."""
        if not self._may("nccl", "launch it again to change anything"):
            return
        view = self._app.view
        dialog = NcclScreen(lambda: self._run.state, view.marked, new_id())
        self._app.push_screen(dialog, lambda command: self._commands.ask(command) if command else None)

    # --- time

    def action_at(self, typed: str) -> None:
        """Show the typed moment."""
        self._run.travel.go_to(typed)

    def action_back(self, seconds: float) -> None:
        """Go back in time from the shown moment, or forward if the seconds are negative."""
        self._run.travel.step(-seconds)

    def action_live(self) -> None:
        self._run.travel.live()

    # --- records

    def action_compare(self, other: str) -> None:
        """Compare this run with another run; `@2` compares its newest attempt with attempt 2."""
        from .side_by_side import ComparisonScreen

        if self._run.watched:
            self._app.notify("nothing is recorded of this job that could be compared", severity="error")
            return
        mine, state = self._run.id, self._run.state
        title = state.name or mine
        if other.startswith("@"):
            mine, other = f"{mine}@{state.attempt}", f"{mine}{other}"
        self._app.push_screen(ComparisonScreen(mine, other, title))

    # --- what the ranks do

    @property
    def _marked(self) -> tuple[int, ...]:
        return tuple(sorted(self._app.view.marked & set(self._run.state.ranks)))

    def _may(self, action: str, why_ended: str) -> bool:
        """Whether the action is enabled; if not, show the reason."""
        if self._commands.in_past():
            return False
        permissions = self._app.permissions
        if permissions.allowed(action):
            return True
        if self._run.state.phase.ended:
            reason = f"the run has ended: {why_ended}"
        elif permissions.readonly:
            reason = permissions.refusal()
        else:
            reason = "no rank runs yet: NCCL_DEBUG of the launch is its --nccl"
        self._app.notify(reason, severity="error")
        return False

    # --- stacks

    def action_stacks(self) -> None:
        """Show the stacks of the marked ranks, or of all, with equal stacks grouped."""
        if self._commands.in_past():
            return
        if self._run.state.phase.ended:
            self._app.notify("the run has ended: there are no ranks to ask")
            return
        background(self._app, "stacks", self._show_stacks(self._marked), exclusive=True)

    async def _show_stacks(self, ranks: tuple[int, ...]) -> None:
        who = "the marked ranks" if ranks else "every rank"
        with self._app.refusals(f"asking {who} for stacks"):
            done = await self._run.follower.send(Dump(new_id(), "stacks", ranks))
            if not done.data:
                self._app.report(done)
                return
            self._commands.stacks.keep(self._run.node_now(), done.data)
            self._open_stacks(done.data)

    def _open_stacks(self, data: Stacks) -> None:
        state = self._run.state
        source = dumps().source_of(state)
        rows = partial(dumps().stack_rows, data, source=source, culprits=culprits(state))
        self._app.push_screen(WideScreen(dumps().stack_title(data), rows))

    def show_stacks_of(self, at: float) -> None:
        """Show the stacks that this cockpit took at a time; others are not kept."""
        stacks = self._commands.stacks.taken_at(at)
        if stacks is not None:
            self._open_stacks(stacks)
            return
        text = f"the stacks of {time_of_day(at)} are not kept: w takes new ones while the run is live"
        self._app.notify(text)

    # --- shell

    def open_shell(self, rank: int | None) -> None:
        """Open a shell on the node of a rank, or on the first node."""
        state = self._run.state
        node = state.ranks[rank].place.node if rank in state.ranks else min(state.nodes, default=0)
        with self._app.refusals():
            shell = self._app.source.shell(self._run.id, node) if state.merged else None
            if shell is None:
                shell = Shell(shell_argv(state.nodes[node].host if node in state.nodes else ""))
            if shell.text:
                self._app.notify(shell.text)
            if shell.argv:
                lend(self._app, shell.argv)
