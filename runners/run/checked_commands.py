"""Commands to a run from what a user typed or passed, checked before anything is sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...presets.nccl import NcclError, parse_level, parse_subsys
from . import environment, saving
from .commands import Restart, SetNccl, Signal
from .errors import RunError
from .signal_names import number_of
from .state import RunState
from .wire.client import new_id


def nccl_command(
    level: str,
    subsys: str = "",
    ranks: Sequence[int] = (),
    seconds: float | None = None,
    restart: bool = False,
    reachable: bool = False,
) -> SetNccl:
    """Return the command that sets NCCL_DEBUG. Raises RunError."""
    if reachable and not restart:
        raise RunError("--reachable is for a restart: add --restart")
    try:
        parse_level(level)
        parse_subsys(subsys)
    except NcclError as error:
        raise RunError(str(error)) from None
    return SetNccl(new_id(), level, subsys, tuple(ranks), seconds, restart, reachable)


def restart_command(env: Mapping[str, str], unset: Sequence[str] = (), reachable: bool = False) -> Restart:
    """Return the command that restarts the worker group with a changed environment. Raises RunError."""
    both = [name for name in unset if name in env]
    if both:
        raise RunError(f"--unset {both[0]} is also set: leave out one of the two")
    if refused := environment.refusal({**env, **dict.fromkeys(unset)}):
        raise RunError(refused)
    return Restart(new_id(), dict(env), tuple(unset), reachable)


def save_seconds(state: RunState, timeout: float | None, reachable: bool = False) -> float:
    """Return the maximum seconds of a save before a restart. Raises RunError if the run cannot be asked to save."""
    if reachable:
        raise RunError(
            "--save-first needs every rank, and --reachable restarts without some: leave one out"
        )
    if not state.phase.ended and saving.way(state) is None:
        raise RunError(f"--save-first: {saving.NO_WAY}")
    return saving.SECONDS if timeout is None else timeout


def signal_command(text: str, ranks: Sequence[int] = ()) -> Signal:
    """Return the command that sends a signal, named with or without SIG, or by its number. Raises RunError."""
    number = number_of(text)
    if number is None:
        raise RunError(f"there is no signal {text}: name one as in USR1, TERM or STOP")
    return Signal(new_id(), number.name, tuple(ranks))
