"""The cockpit's services for screens: view changes, log windows, and commands with confirmation and result."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec.structs import replace
from textual.app import App, SuspendNotSupported
from textual.signal import Signal

from ...presets import trusted_files
from ...presets.plurals import plural
from ...presets.sanitize import as_message
from ...presets.trusted_files import private_folder
from ...runners.profile import profiling
from ...runners.run import file_io, run_notes, saving
from ...runners.run.errors import RunError
from ...runners.run.model import (
    Command,
    CommandDone,
    Down,
    Dump,
    Profile,
    ReadLog,
    Restart,
    SetAutostop,
    SetNccl,
    Stop,
)
from ...runners.run.nccl_reach import UNUSED, refusal, uses_gloo
from ...runners.run.wire.client import LinkError, Window, new_id
from ..background import after, background, keep_running, stop
from ..rows.command_line import CommandError, RunNames, parse
from ..rows.confirm import Confirmation, Target, changed_since, confirmation, env_now, target
from ..rows.frame import Frame, LinkPhase
from ..rows.profiles import answer_rows
from ..rows.run_status import no_cluster
from ..source import WATCH, Follower, Shell
from ..travel import FollowingApp, Travel
from ..user_settings import UserSettings
from .bars import Flash
from .modal import ConfirmScreen, NcclScreen, TypedScreen, WideScreen
from .prompts import CommandPrompt

PATIENCE_S = 0.5
"""Seconds before the cockpit reports that it is waiting."""

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


class LendingApp(App[None]):
    """Lends the terminal to programs, and copies text out of the cockpit."""

    said: tuple[str, ...] = ()
    """The newest messages."""

    def notify(self, message: str, **options: Any) -> None:
        """Show a message above the footer if the screen has a place for it, else as a toast."""
        text = as_message(message)
        self.said = (*self.said[-49:], text)
        if flash := self._flash():
            flash.say(text, options.get("severity", "information"), options.get("timeout"))
        else:
            super().notify(text, **options | {"markup": False})  # names and paths may contain brackets

    def tell(self, done: CommandDone) -> None:
        """Show the result of a command."""
        self.notify(done.text, severity="information" if done.ok else "error")

    @contextmanager
    def refusals(self, late: str = "") -> Iterator[None]:
        """Show an error of the block as a message. `late` is shown if the block takes longer than PATIENCE_S."""
        if late:
            background(self, "patience", after(PATIENCE_S, partial(self.notify, late, timeout=2)))
        try:
            yield
        except (CommandError, LinkError, RunError) as error:
            self.notify(str(error), severity="error")
        finally:
            if late:
                stop(self, "patience")

    def _flash(self) -> Flash | None:
        return next(iter(self.screen.query(Flash)), None) if self.screen_stack else None

    def _refresh_notifications(self) -> None:
        """Move toasts of another screen to the run's own rows, where Textual would cover the run with them."""
        if flash := self._flash():
            for notice in self._notifications:
                flash.say(notice.message, notice.severity, notice.time_left)
            self._notifications.clear()
        super()._refresh_notifications()

    def keep(self, text: str) -> None:
        """Copy to the terminal's clipboard, and to a file, since some terminals refuse clipboard access."""
        if not text:
            self.notify("no line to copy")
            return
        self.copy_to_clipboard(text)
        try:
            path = keep_copy(text)
        except OSError as error:
            self.notify(f"copied to the clipboard only: {error}", severity="warning")
            return
        self.notify(f"{plural(text.count(chr(10)) + 1, 'line')} copied, also to {path}")

    def page(self, text: str) -> None:
        with tempfile.NamedTemporaryFile("w", prefix="distui-", suffix=".log", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            self.lend(pager_argv(Path(file.name)))

    def lend(self, argv: Sequence[str]) -> int | None:
        """Run a program in the terminal until it ends; return its exit code, None if it could not start."""
        try:
            with self.suspend():
                return subprocess.run(argv, check=False).returncode
        except SuspendNotSupported:
            self.notify("this terminal cannot be lent to another program", severity="warning")
        except OSError as error:
            self.notify(f"{argv[0]} did not start: {error.strerror or error}", severity="error")
        return None


def dumps() -> ModuleType:
    """Import the rows of dumps on demand: they are slow to load and rarely used."""
    from ..rows import dumps as rows

    return rows


class CommandingApp(LendingApp, FollowingApp):
    """The app's interface for its screens. Sends commands and reports results; only events change the screen."""

    travel: Travel
    """The displayed time."""
    frames: Signal[Frame]
    grown: Signal[None]
    """A log file has grown."""
    keys: Mapping[str, str] = {}
    """The user's own keys, as text, by action id."""
    settings: UserSettings
    """The user's settings for this and later cockpits."""
    typed_lines: Sequence[str] = ()
    """The lines that the user typed after `:`, the newest last."""

    def open_run(self, run: str) -> None:
        """Follow this run instead of the current one."""
        raise NotImplementedError

    def rerun(self, run: str) -> None:
        """Open the launch form, filled from a run."""
        raise NotImplementedError

    def choose(self, **fields: object) -> None:
        """Change settings, and save them for later cockpits."""
        raise NotImplementedError

    def change_view(self, **changes: object) -> None:
        self.view = replace(self.view, **changes)
        self.publish()

    async def read_log(self, ask: ReadLog) -> Window:
        """Return a window of the current run's log. Raises LinkError."""
        if self.follower is None:
            raise LinkError("no run is open")
        return await self.follower.read_log(ask)

    def ask(self, command: Command) -> None:
        """Ask for confirmation before a command that changes the run; send other commands immediately."""
        if self.follower is None or self.in_past():
            return
        if isinstance(command, Down | SetAutostop):
            self._ask_of_cluster(command, self.follower)
            return
        question = confirmation(self.follower.state, command, self._now())
        if question is None:
            background(self, "send", self._send(command))
            return
        if self.view.readonly:
            self.notify(self.why_readonly(), severity="error")
            return
        if isinstance(command, SetNccl) and (why := refusal(self.follower.state, command)):
            self.notify(why, severity="error")
            return
        self._confirm(question)

    def in_past(self) -> bool:
        """Whether the screen shows the past, where commands are disabled; if so, show a warning."""
        if self.travel.active:
            text = "the screen shows the past: esc goes back to live, and then this key acts"
            self.notify(text, severity="warning")
        return self.travel.active

    def _now(self) -> float:
        """Return the unix time by the clock of the run's node."""
        follower = self.follower
        if follower is None:
            return self.clock()
        return self.live_frame(follower).node_now(min(follower.state.nodes, default=0))

    async def retire(self, launched: str) -> None:
        """Remove the runs that the settings no longer keep, and report which."""
        if gone := await asyncio.to_thread(self.source.retire, launched):
            self.notify(gone)

    def mark(self, kind: str, text: str, run: str) -> str:
        """Write a "note" or "tags" of a run, as `distui note` and `distui tag` do; return "" or an error."""
        if kind == "note":
            return self.source.mark(run, note=text)
        try:
            add, remove = run_notes.words_of(text.split())
        except RunError as error:
            return str(error)
        return self.source.mark(run, add=add, remove=remove)

    def why_readonly(self) -> str:
        if self.run_id.startswith(WATCH):
            return "distui did not start this job: it can only be watched"
        return "read-only: this cannot change the run"

    def _confirm(self, question: Confirmation) -> None:
        follower = self.follower
        assert follower is not None
        screen = ConfirmScreen(
            question.title,
            question.lines,
            question.verb,
            self.view.ascii,
            question.other_verb,
            more=question.more,
            save=question.save_verb,
        )
        about = target(follower.state)
        self.push_screen(screen, lambda answer: self._answered(answer, question, about))

    def _answered(self, answer: str | None, question: Confirmation, about: Target) -> None:
        """Send the confirmed command; if the run has changed since the question, ask again."""
        chosen = question.other if answer == "a" else question.command
        if not answer or chosen is None or self.follower is None:
            return
        changed = changed_since(about, self.follower.state)
        if not changed:
            background(self, "send", self._send(chosen, save=answer == "s"))
        elif self.follower.state.phase.ended and not isinstance(chosen, SetAutostop):
            self.notify(f"{changed}: nothing was done", severity="error")
        else:
            self.notify(f"{changed}: nothing was done; confirm it again", severity="warning")
            self.ask(chosen)

    def _ask_of_cluster(self, command: Down | SetAutostop, follower: Follower) -> None:
        """Confirm a command to the cluster, even if the run has ended: the cluster still costs money."""
        question = confirmation(follower.state, command, self._now())
        problem = no_cluster(follower.state)
        if problem or question is None:
            self.notify(problem, severity="error")
        elif not self.allowed("launch"):
            self.notify(self.why_readonly(), severity="error")
        elif isinstance(command, SetAutostop):
            self._confirm(question)
        else:
            screen = TypedScreen(
                question.title, question.lines, question.typed, question.verb, self.view.ascii
            )
            self.push_screen(screen, lambda typed: self._typed(typed, question.typed))

    def _typed(self, typed: str | None, name: str) -> None:
        if not typed:
            return
        if typed != name:
            text = f"{typed!r} is not the name of the cluster ({name}): nothing was done"
            self.notify(text, severity="error")
            return
        background(self, "send", self._send(Down(new_id(), name)))

    def allowed(self, action: str) -> bool | None:
        raise NotImplementedError

    def cluster_commands(self) -> list[tuple[str, str, Callable[[], None]]]:
        """Return the palette's entries for a cluster: text, the equivalent `:` line, action."""
        if self.follower is None or no_cluster(self.follower.state) or not self.allowed("launch"):
            return []
        return [
            ("take the cluster down", ":down", lambda: self.run_line("down")),
            ("cluster: down after 30 min idle", ":autostop 30", lambda: self.run_line("autostop 30")),
            ("cluster: never down by itself", ":autostop off", lambda: self.run_line("autostop off")),
        ]

    async def _send(self, command: Command, save: bool = False) -> None:
        """Send a command and show its result; `save` requests a checkpoint first, if the ranks support that."""
        follower = self.follower
        if follower is None:
            return
        with self.refusals():
            if isinstance(command, Down | SetAutostop) and follower.state.phase.ended:
                done = await self._afterwards(follower, command)
            elif isinstance(command, Stop) and not follower.readonly:
                done = await self.source.stop(self.run_id, command, self._warn)
            elif isinstance(command, Restart) and save:
                if asked := saving.way(follower.state):
                    most = f"{saving.SECONDS:g} s at most"
                    self.notify(f"{saving.words(asked)}: the restart waits for a checkpoint, {most}")
                done = await saving.saved_then(command, saving.SECONDS, follower.send)
            else:
                done = await follower.send(command)
            self.tell(done)
            if done.data:
                await self._show_data(command, done, follower)

    async def _show_data(self, command: Command, done: CommandDone, follower: Follower) -> None:
        """Show the data of a result. Traces on other machines are fetched first. Raises LinkError."""
        title = done.text
        if isinstance(command, Profile):
            answered = profiling.traces(done)
            run_dir, elsewhere = self.source.kept_at(self.run_id)
            if run_dir is not None and not elsewhere:
                fetched = profiling.here(run_dir, answered)
            else:
                folder = profiling.folder_of(run_dir or state_dir(), answered)
                fetched = await profiling.fetched(follower.send, answered, folder)
            title, rows = profiling.title(answered), partial(answer_rows, done, answered, fetched)
        else:
            what = command.what if isinstance(command, Dump) else "stacks"
            source = dumps().source_of(follower.state)
            rows = partial(dumps().dump_rows, what, done.data, source=source)
        self.push_screen(WideScreen(title, rows, self.view.ascii))

    def show_stacks(self, data: Mapping[str, str], when: str = "") -> None:
        """Show merged stacks; `when` is the time of stacks from the past."""
        follower = self.follower
        if follower is not None:
            rows = partial(dumps().stack_rows, data, source=dumps().source_of(follower.state))
            title = dumps().stack_title(data)
            self.push_screen(WideScreen(f"{when}: {title}" if when else title, rows, self.view.ascii))

    def _may(self, action: str, why_ended: str) -> Follower | None:
        """Return the run if the action is allowed on it; else show the reason and return None."""
        follower = self.follower
        if follower is None or self.in_past():
            return None
        if self.allowed(action):
            return follower
        if follower.state.phase.ended:
            self.notify(f"the run has ended: {why_ended}", severity="error")
        elif self.view.readonly:
            self.notify(self.why_readonly(), severity="error")
        else:
            self.notify("no rank runs yet: NCCL_DEBUG of the launch is its --nccl", severity="error")
        return None

    def ask_profile(self) -> None:
        """Ask for confirmation of a profile of the marked ranks, or of all."""
        if follower := self._may("profile", "there are no ranks to profile"):
            ranks = tuple(sorted(self.view.marked & set(follower.state.ranks)))
            self.ask(Profile(new_id(), ranks))

    def _warn(self, text: str) -> None:
        self.notify(text, severity="warning")

    async def _afterwards(self, follower: Follower, command: Down | SetAutostop) -> CommandDone:
        """Send a cluster command of an ended run, through its hub if that is still running. Raises LinkError."""
        done: CommandDone | None = None
        if not follower.readonly:
            with suppress(LinkError):
                done = await follower.send(command)
        if done is None:
            done = await self.source.afterwards(self.run_id, command)
        keep_running(self, "follow", follower.run)  # reads the new events
        return done

    def restart(self) -> None:
        """Restart the worker group; while the agent is lost, reconnect instead; launch an ended run again."""
        if self.follower is not None and self.follower.state.phase.ended:
            self.rerun(self.run_id)
        elif self.follower is not None and self.follower.status.phase is LinkPhase.LOST:
            self.follower.hurry()
        else:
            self.ask(Restart(id=new_id()))

    def stop(self) -> None:
        """Stop the run, or show why it cannot be stopped."""
        if self._may("stop", "there is nothing to stop"):
            self.ask(Stop(id=new_id()))

    def ask_nccl(self) -> None:
        """Open the NCCL_DEBUG dialog, or show why there is nothing to set."""
        follower = self._may("nccl", "launch it again to change anything")
        if follower is None:
            return
        if uses_gloo(follower.state):
            text = (
                f"{UNUSED}, so NCCL_DEBUG has no effect;  "
                "`:nccl INFO` keeps a level for the next start and sets c10d's own logging now"
            )
            self.notify(text, severity="warning")
            return
        dialog = NcclScreen(lambda: follower.state, self.view.marked, new_id(), self.view.ascii)
        self.push_screen(dialog, lambda command: self.ask(command) if command is not None else None)

    def ask_line(self) -> None:
        """Open the `:` command line."""
        self.push_screen(CommandPrompt(self.typed_lines, self._names(), self.view.ascii), self._typed_line)

    def _names(self) -> RunNames:
        if self.follower is None:
            return RunNames()
        state = self.follower.state
        return RunNames(
            tuple(sorted(state.ranks)), tuple(sorted({*state.changes, *env_now(state), *USUAL_VARIABLES}))
        )

    def _typed_line(self, line: str | None) -> None:
        if line and line.strip():
            self.typed_lines = [*(each for each in self.typed_lines if each != line), line][-MOST_LINES:]
        self.run_line(line)

    def run_line(self, line: str | None) -> None:
        """Execute a line that the user typed after `:`."""
        if not line:
            return
        with self.refusals():
            asked = parse(line, new_id, self.view.marked)
            if asked.command is not None:
                self.ask(asked.command)
            elif asked.action:
                of_screen = asked.action.startswith(("pane", "rank_log", "log_jump", "columns"))
                background(
                    self, "action", self.run_action(asked.action, self.screen if of_screen else self)
                )

    def shell(self, rank: int | None) -> None:
        if self.follower is None:
            return
        state = self.follower.state
        place = state.ranks[rank].place.node if rank in state.ranks else min(state.nodes, default=0)
        with self.refusals():
            shell = self.source.shell(self.run_id, place) if state.merged else None
            if shell is None:
                shell = Shell(shell_argv(state.nodes[place].host if place in state.nodes else ""))
            if shell.text:
                self.notify(shell.text)
            if shell.argv:
                self.lend(shell.argv)


def shell_argv(host: str, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the command of a shell on a node: the user's shell on this machine, ssh for others."""
    if host in ("", "localhost", socket.gethostname()):
        return (environ.get("SHELL") or "/bin/sh",)
    return "ssh", "-t", host


def pager_argv(path: Path, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the command of the user's pager for a file; `less` opens at the end."""
    pager = environ.get("PAGER", "").split() or ["less"]
    return [*pager, *(["+G"] if Path(pager[0]).name == "less" else []), str(path)]


def state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return distui's state directory: `${XDG_STATE_HOME:-~/.local/state}/distui`."""
    return trusted_files.base("XDG_STATE_HOME", environ) / "distui"


def keep_copy(text: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Write copied lines to `copied.txt`, readable by this user only. Raises OSError."""
    path = state_dir(environ) / "copied.txt"
    private_folder(path.parent)
    file_io.write_atomically(path, f"{text}\n".encode())
    return path
