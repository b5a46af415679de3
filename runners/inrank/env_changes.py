"""Changes of the ranks' environment: check and apply them, and check that ranks can start with them."""

from __future__ import annotations

import json
import os
import resource
import threading
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from .control import MOST_LINE
from .presets_modules import presets_module

_names = presets_module("env_names")
UNSET = "DISTUI_UNSET"
"""Names that changes have removed, one per line, for a new runner: torch would set some of them for the ranks."""

LONGEST = 32 * os.sysconf("SC_PAGE_SIZE")
"""Linux's limit in bytes for one NAME=VALUE with its NUL (MAX_ARG_STRLEN)."""
_SMALLEST_SUM, _LARGEST_SUM = 128 << 10, 6 << 20
"""Lower and upper bound in bytes of Linux's limit for arguments and environment, which depends on the stack limit."""
_OF_A_REQUEST = 1 << 10
"""Bytes of a request to the runner without the changes."""
_OF_A_RANK = 32 << 10
"""Bytes that a rank's environment has in addition to its runner's."""
_FREE_FILES = 8
"""File descriptors that must be free for pipes and files while ranks are started."""


def refusal(changes: object) -> str:
    """Return why changes (name → value, or None to unset) are not allowed, as a sentence; "" if they are."""
    if not isinstance(changes, dict):
        return "env is not an object of names and values"
    for name, value in changes.items():
        if not isinstance(value, (str, type(None))):
            return "the value of %r is neither a text nor null" % name
        refused = _names.refusal(name, value or "") or _runners_refusal(name, value or "")
        if refused:
            return str(refused)
    return ""


def _runners_refusal(name: str, value: str) -> str:
    """Return why a runner cannot give its ranks this variable, as a sentence; "" if it can."""
    if name in _names.PER_RANK:
        return "%s is set by the runner for each rank: leave it out" % name
    try:
        os.fsencode(name), os.fsencode(value)
        size = len((name + value).encode()) + 2
    except UnicodeEncodeError:
        return "%s or its value is not text that can be encoded" % ascii(name)
    if size > LONGEST:
        text = "%s has %d bytes, and Linux gives a program no variable of more than %d bytes"
        return text % (name, size, LONGEST)
    return ""


def too_long_for_request(changes: Mapping[str, "str | None"]) -> str:
    """Return why allowed changes do not fit into one request to a runner, as a sentence; "" if they do."""
    sent = 2 * len(json.dumps(changes)) + _OF_A_REQUEST  # "env" and "shown"
    if sent <= MOST_LINE:
        return ""
    text = "these changes together take %d bytes of a request to the runner, which takes %d: ask for them in several"
    return (text % (sent, MOST_LINE)) + " restarts"


def too_long_for_process(env: Mapping[str, str], argv: Sequence[str]) -> str:
    """Return why environment and arguments are too long for a process, as a sentence; "" if they are not."""
    # Per variable "=", a NUL and a pointer of 8 bytes; per word a NUL and a pointer.
    size = sum(len(os.fsencode(name)) + len(os.fsencode(value)) + 10 for name, value in env.items())
    size += sum(len(os.fsencode(word)) + 9 for word in argv) + _OF_A_RANK
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    most = _LARGEST_SUM if stack == resource.RLIM_INFINITY else min(stack // 4, _LARGEST_SUM)
    if size <= max(most, _SMALLEST_SUM):
        return ""
    text = "environment and arguments of a rank would have %d bytes, and Linux allows %d here (a quarter of ulimit -s)"
    return text % (size, max(most, _SMALLEST_SUM))


def too_few_files() -> str:
    """Return why this process has too few free file descriptors to start ranks, as a sentence; "" if it has enough."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    used = len(os.listdir("/proc/self/fd")) - 1
    if limit == resource.RLIM_INFINITY or limit - used >= _FREE_FILES:
        return ""
    text = "the runner has %d of %d file descriptors in use: raise ulimit -n above %d and launch again"
    return text % (used, limit, limit)


class Variables:
    """The requested changes of this process's environment, which every rank copies."""

    def __init__(self) -> None:
        names = os.environ.pop(UNSET, "").split("\n")
        self.asked: dict[str, str | None] = {}
        """Changes for the next attempt: name → value, or None to unset."""
        self._shown: dict[str, str | None] = {}
        """These changes with masked secrets, for reports."""
        self.lasting: dict[str, str | None] = dict.fromkeys(filter(None, names))
        """All changes so far, including the names that an earlier runner removed."""
        self.undo: dict[str, str | None] = {}
        """Name → value before the newest changes, or None."""
        self._lock = threading.Lock()
        apply(self.lasting, os.environ)

    def problem(self, request: Mapping[str, Any], argv: Sequence[str], spawns: bool) -> str:
        """Return why a request is refused; "" if it is not. `spawns`: ranks with `argv` start at once."""
        changes = {} if request.get("env") is None else request["env"]
        refused = refusal(changes) or (too_few_files() if spawns else "")
        if refused or not changes:
            return refused
        after = dict(os.environ)
        apply(self.asked, after)
        apply(changes, after)
        return too_long_for_process(after, argv)

    def note(self, request: Mapping[str, Any]) -> None:
        """Add a request's changes for the next attempt. "shown" of the request: the values with masked secrets."""
        asked, shown = request.get("env") or {}, request.get("shown")
        masked = shown if isinstance(shown, dict) else {}
        with self._lock:
            self.asked.update(asked)
            for name, value in asked.items():
                text = masked.get(name)
                self._shown[name] = text if isinstance(text, str) or value is None else "***"

    def take(self) -> dict[str, str | None]:
        """Apply the requested changes. Return the variables that changed, with masked secrets."""
        with self._lock:
            diff, self.asked = self.asked, {}
            shown, self._shown = self._shown, {}
        news = {name: shown.get(name) for name, value in diff.items() if os.environ.get(name) != value}
        self.undo = {name: os.environ.get(name) for name in diff}
        self.lasting.update(diff)
        apply(self.lasting, os.environ)  # all: torchrun may have set removed ones again
        return news

    def take_back(self) -> list[str]:
        """Undo the newest changes and return their names."""
        undo, self.undo = self.undo, {}
        self.lasting.update(undo)
        apply(undo, os.environ)
        return sorted(undo)

    def unset(self) -> dict[str, str]:
        """Return the variable that tells the next runner or torchrun which names to remove."""
        names = [name for name, value in self.lasting.items() if value is None]
        return {UNSET: "\n".join(names)} if names else {}


def apply(changes: Mapping[str, "str | None"], env: MutableMapping[str, str]) -> None:
    """Apply changes (name → value, or None to unset) to an environment."""
    for name, value in changes.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
