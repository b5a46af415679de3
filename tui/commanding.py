"""Commands to the run: every one that changes it asks first, and the answer is told."""

from __future__ import annotations

from ..runners.model import Command, CommandDone, Restart, Stop
from ..runners.wire.client import new_id
from ..runners.wire.link import LinkError
from . import terminal
from .follow import Follower, LinkPhase
from .lending import LendingApp
from .rows.command import CommandError, parse
from .rows.confirm import confirmation
from .rows.frame import View


class CommandingApp(LendingApp):
    """Asks, sends, and says what came back; the screen moves only when events say so."""

    follower: Follower | None
    view: View

    def ask(self, command: Command) -> None:
        """Ask before a command that changes the run; send the others at once."""
        from .screens.modal import ConfirmScreen

        if self.follower is None:
            return
        question = confirmation(self.follower.state, command)
        if question is None:
            self.run_worker(self._send(command), group="send")
            return
        if self.view.readonly:
            self.notify("read-only: this cannot change the run", severity="error")
            return
        screen = ConfirmScreen(question.title, question.lines, question.verb, self.view.ascii)
        self.push_screen(screen, lambda yes: self._answered(yes, command))

    def _answered(self, yes: bool | None, command: Command) -> None:
        if yes:
            self.run_worker(self._send(command), group="send")

    async def _send(self, command: Command) -> None:
        if self.follower is None:
            return
        try:
            done = await self.follower.send(command)
        except LinkError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self.notify(done.text, severity="information" if done.ok else "error", markup=False)
        if done.data:
            self._show_dump(done)

    def _show_dump(self, done: CommandDone) -> None:
        from .rows.report import dump_rows
        from .screens.modal import TextScreen

        self.push_screen(TextScreen(done.text, dump_rows(done.data), self.view.ascii))

    def restart(self) -> None:
        """Restart the worker group; while the agent is lost, reconnect instead."""
        if self.follower is not None and self.follower.status.phase is LinkPhase.LOST:
            self.follower.reconnect_now()
        else:
            self.ask(Restart(id=new_id()))

    def stop(self) -> None:
        """End the run."""
        self.ask(Stop(id=new_id()))

    def ask_nccl(self) -> None:
        """The NCCL_DEBUG dialog."""
        from .screens.nccl import NcclScreen

        if self.follower is not None:
            dialog = NcclScreen(self.follower.state, self.view.marked, new_id(), self.view.ascii)
            self.push_screen(dialog, lambda command: self.ask(command) if command is not None else None)

    def run_line(self, line: str | None) -> None:
        """What was typed after `:`."""
        if not line:
            return
        try:
            asked = parse(line, new_id, self.view.marked)
        except CommandError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        if asked.command is not None:
            self.ask(asked.command)
        elif asked.action:
            self.run_worker(self.run_action(asked.action, self.screen if "pane" in asked.action else self))

    def shell(self, rank: int | None) -> None:
        """A shell on the node of a rank."""
        if self.follower is None:
            return
        state = self.follower.state
        place = state.ranks[rank].place.node if rank in state.ranks else 0
        self.lend(terminal.shell_argv(state.nodes[place].host if place in state.nodes else ""))
