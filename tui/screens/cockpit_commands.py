"""Commands to the run on the screen: question, sending, result. Only events change the screen."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from types import ModuleType

from ...runners.profile import rank_traces
from ...runners.run import saving
from ...runners.run.commands import Command, Down, Dump, Profile, Restart, SetAutostop, SetNccl, Stop
from ...runners.run.model import CommandDone
from ...runners.run.nccl_reach import refusal
from ...runners.run.wire.client import LinkError, new_id
from ..background import background, keep_running
from ..kept_stacks import KeptStacks
from ..keys import name_of, target_of
from ..lending import state_dir
from ..open_run import OpenRun
from ..rows.command_line import RunNames, parse
from ..rows.confirm import Confirmation, Target, changed_since, confirmation, env_now, target
from ..rows.profiles import answer_rows
from ..rows.run_status import no_cluster
from .cockpit import Cockpit
from .modal import ConfirmScreen, TypedScreen, WideScreen
from .prompts import CommandPrompt

MOST_LINES = 100
"""Maximum number of remembered `:` lines."""

USUAL_VARIABLES = (
    "CUDA_LAUNCH_BLOCKING",
    "NCCL_DEBUG",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_DISTRIBUTED_DEBUG",
)
"""Variables that completion offers in addition to those that a restart has changed."""


def dumps() -> ModuleType:
    """Import the rows of dumps on demand: they are slow to load and rarely used."""
    from ..rows import dumps as rows

    return rows


class Commands:
    """Sends commands to one run. A command that changes the run is confirmed first."""

    def __init__(self, app: Cockpit, run: OpenRun) -> None:
        self._app, self._run = app, run
        self.stacks = KeptStacks()

    # --- the `:` line

    def ask_line(self) -> None:
        """Open the `:` command line."""
        prompt = CommandPrompt(self._app.typed_lines, self._names())
        self._app.push_screen(prompt, self._typed_line)

    def _names(self) -> RunNames:
        state = self._run.state
        variables = {*state.changes, *env_now(state), *USUAL_VARIABLES}
        return RunNames(tuple(sorted(state.ranks)), tuple(sorted(variables)))

    def _typed_line(self, line: str | None) -> None:
        if line and line.strip():
            earlier = [each for each in self._app.typed_lines if each != line]
            self._app.typed_lines = [*earlier, line][-MOST_LINES:]
        self.run_line(line or "")

    def run_line(self, line: str) -> None:
        """Execute a line that the user typed after `:`."""
        app = self._app
        with app.refusals():
            typed = parse(line, new_id, app.view.marked)
            if typed.command is not None:
                self.ask(typed.command)
            elif typed.action and not app.permissions.allowed(name_of(typed.action)):
                self._refuse(app.permissions.refusal())
            elif typed.action:
                target = target_of(typed.action)
                owner = app if target == typed.action else app.screen
                background(app, "action", app.run_action(target, owner))

    # --- questions

    def in_past(self) -> bool:
        """Whether the screen shows the past, where commands are disabled; if so, show a warning."""
        if self._run.travel.at is None:
            return False
        text = "not available in the past: esc returns to live"
        self._app.notify(text, severity="warning")
        return True

    def ask(self, command: Command) -> None:
        """Ask for confirmation before a command that changes the run; send other commands immediately."""
        if self.in_past():
            return
        question = confirmation(self._run.state, command, self._run.node_now())
        if isinstance(command, Down | SetAutostop):
            self._ask_of_cluster(command, question)
        elif question is None:
            background(self._app, "send", self._send(command))
        elif self._app.permissions.readonly:
            self._refuse(self._app.permissions.refusal())
        elif isinstance(command, SetNccl) and (why := refusal(self._run.state, command)):
            self._refuse(why)
        else:
            self._confirm(question)

    def _refuse(self, why: str) -> None:
        self._app.notify(why, severity="error")

    def _confirm(self, question: Confirmation) -> None:
        screen = ConfirmScreen(
            question.title,
            question.lines,
            question.verb,
            question.other_verb,
            more=question.more,
            save=question.save_verb,
        )
        about = target(self._run.state)
        self._app.push_screen(screen, lambda answer: self._answered(answer, question, about))

    def _answered(self, answer: str | None, question: Confirmation, about: Target) -> None:
        """Send the confirmed command; if the run has changed since the question, ask again."""
        chosen = question.other if answer == "a" else question.command
        if not answer or chosen is None:
            return
        changed = changed_since(about, self._run.state)
        if not changed:
            background(self._app, "send", self._send(chosen, save=answer == "s"))
        elif self._run.state.phase.ended and not isinstance(chosen, SetAutostop):
            self._refuse(f"{changed}: nothing was done")
        else:
            self._app.notify(f"{changed}: nothing was done; confirm it again", severity="warning")
            self.ask(chosen)

    def _ask_of_cluster(self, command: Down | SetAutostop, question: Confirmation | None) -> None:
        """Confirm a command to the cluster, even if the run has ended: the cluster still costs money."""
        problem = no_cluster(self._run.state)
        if problem or question is None:
            self._refuse(problem)
        elif not self._app.permissions.allowed("launch"):
            self._refuse(self._app.permissions.refusal())
        elif isinstance(command, SetAutostop):
            self._confirm(question)
        else:
            name = question.typed
            screen = TypedScreen(question.title, question.lines, name, question.verb)
            self._app.push_screen(screen, lambda typed: self._take_down(typed, name))

    def _take_down(self, typed: str | None, name: str) -> None:
        if typed == name:
            background(self._app, "send", self._send(Down(new_id(), name)))
        elif typed:
            self._refuse(f"{typed!r} is not the name of the cluster ({name}): nothing was done")

    # --- sending, and the result

    async def _send(self, command: Command, save: bool = False) -> None:
        """Send a command and show its result; `save` requests a checkpoint first, if the ranks support that."""
        with self._app.refusals():
            done = await (self._saved_restart(command) if save else self._sent(command))
            self._app.report(done)
            if done.data:
                await self._show_data(command, done)

    async def _sent(self, command: Command) -> CommandDone:
        """Send a command to where it can still be executed. Raises LinkError."""
        follower = self._run.follower
        if isinstance(command, Down | SetAutostop) and self._run.state.phase.ended:
            return await self._sent_afterwards(command)
        if isinstance(command, Stop) and not follower.readonly:
            warn = partial(self._app.notify, severity="warning")
            return await self._app.source.stop(self._run.id, command, warn)
        return await follower.send(command)

    async def _saved_restart(self, command: Command) -> CommandDone:
        """Restart after a checkpoint, or without one after `saving.SECONDS`. Raises LinkError."""
        if not isinstance(command, Restart):
            return await self._sent(command)
        if way := saving.way(self._run.state):
            most = f"{saving.SECONDS:g} s at most"
            self._app.notify(f"{saving.words(way)}: the restart waits for a checkpoint, {most}")
        return await saving.saved_then(command, saving.SECONDS, self._run.follower.send)

    async def _sent_afterwards(self, command: Down | SetAutostop) -> CommandDone:
        """Send a cluster command of an ended run, through its hub if that is still running. Raises LinkError."""
        follower = self._run.follower
        done: CommandDone | None = None
        if not follower.readonly:
            with suppress(LinkError):
                done = await follower.send(command)
        if done is None:
            done = await self._app.source.afterwards(self._run.id, command)
        keep_running(self._app, "follow", follower.run)  # reads the new events
        return done

    async def _show_data(self, command: Command, done: CommandDone) -> None:
        """Show the data of a result. Traces on other machines are fetched first. Raises LinkError."""
        if not isinstance(command, Profile):
            what = command.what if isinstance(command, Dump) else "stacks"
            if what == "stacks":
                self.stacks.keep(self._run.node_now(), done.data)
            rows = partial(dumps().dump_rows, what, done.data, source=dumps().source_of(self._run.state))
            self._app.push_screen(WideScreen(done.text, rows))
            return
        answered = rank_traces.traces(done)
        run_dir, elsewhere = self._app.source.kept_at(self._run.id)
        if run_dir is not None and not elsewhere:
            fetched = rank_traces.here(run_dir, answered)
        else:
            folder = rank_traces.folder_of(run_dir or state_dir(), answered)
            fetched = await rank_traces.fetched(self._run.follower.send, answered, folder)
        rows = partial(answer_rows, done, answered, fetched)
        self._app.push_screen(WideScreen(rank_traces.title(answered), rows))
