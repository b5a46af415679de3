"""The hook inside every rank: a unix socket on which the agent asks, and a daemon thread that answers.

Requests and answers are one JSON object a line. Stdlib only; torch is looked at only after the user's script
imported it.
"""

import contextlib
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time

from . import debug, quiet
from .control import listen, same_user


class Steps:
    """Counts optimizer steps through torch's public global hook."""

    def __init__(self):
        self.count = 0
        self.last = 0.0
        self.first = 0.0
        self._optimizer = None

    def arm(self):
        """Register with torch.optim once it is imported; True when armed."""
        module = sys.modules.get("torch.optim.optimizer")
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is None:
            return False
        register(self._stepped)
        return True

    def _stepped(self, optimizer, args, kwargs):
        # A sharded optimizer calls an inner one: count only whoever came first.
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = _reference(optimizer)
        if self._optimizer() is optimizer:
            self.count += 1
            self.last = time.time()
            self.first = self.first or self.last


def _reference(thing):
    import weakref

    return weakref.ref(thing)


class Hook:
    """Everything a rank answers."""

    def __init__(self, path):
        self.steps = Steps()
        self.armed = False
        self._server = listen(path)
        self._peers = []
        os.register_at_fork(after_in_child=self._server.close)

    def run(self):
        threading.Thread(target=self._accept, name="distui-hook", daemon=True).start()
        threading.Thread(target=self._arm, name="distui-arm", daemon=True).start()

    def _arm(self):
        """torch is imported some time after the start; look seldom once a minute has passed."""
        began = time.monotonic()
        while not self.armed:
            self.armed = self.steps.arm()
            if not self.armed:
                time.sleep(0.05 if time.monotonic() - began < 60 else 1.0)
        self._tell({"push": "armed"})

    def _tell(self, message):
        for peer in list(self._peers):
            with contextlib.suppress(OSError):
                peer.sendall(json.dumps(message).encode() + b"\n")

    def _accept(self):
        while True:
            try:
                peer, _ = self._server.accept()
            except OSError:
                return
            if not same_user(peer):
                peer.close()
                continue
            threading.Thread(target=self._serve, args=(peer,), name="distui-serve", daemon=True).start()

    def _serve(self, peer):
        self._peers.append(peer)
        try:
            with peer, peer.makefile("rb") as lines:
                peer.sendall(json.dumps(self.hello()).encode() + b"\n")
                for line in lines:
                    request = json.loads(line)
                    answer = self.answer(request)
                    answer["id"] = request.get("id")
                    peer.sendall(json.dumps(answer).encode() + b"\n")
        except (OSError, ValueError):
            pass
        finally:
            self._peers.remove(peer)

    def hello(self):
        return {
            "pid": os.getpid(), "rank": os.environ.get("RANK"), "armed": self.armed,
            "nccl": debug.nccl_state(), "faulthandler": True,
        }  # fmt: skip

    def answer(self, request):
        """One request → one answer; what went wrong comes back as {"error": sentence}."""
        op = request.get("op")
        try:
            if op == "steps":
                return {"count": self.steps.count, "last": self.steps.last, "first": self.steps.first}
            if op == "nccl":
                return debug.set_nccl(request["env"])
            if op == "c10d":
                return debug.set_c10d(request["level"])
            if op == "stacks":
                return {"text": stacks()}
            if op == "flight":
                return {"text": debug.flight()}
            if op == "memory":
                return {"text": debug.memory()}
            if op == "hello":
                return self.hello()
        except (OSError, RuntimeError, AttributeError, ImportError, ValueError, KeyError, TypeError) as error:
            return {"error": "%s: %s" % (type(error).__name__, error)}
        return {"error": "unknown request %r" % op}


def stacks():
    """Python stacks of all threads, as faulthandler writes them."""
    path = "%s.stacks.%d" % (os.environ["DISTUI_RANK_FILES"], time.time_ns())
    with open(path, "w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read()
    os.unlink(path)
    return text


def note_exceptions():
    """Write down when an uncaught exception came: exits alone cannot tell the culprit from its victims."""
    chained = sys.excepthook

    def noted(kind, value, trace):
        with contextlib.suppress(OSError, KeyError):
            if not issubclass(kind, SystemExit):
                line = {"time": time.time(), "type": kind.__name__, "text": str(value)[:2000]}
                with open(os.environ["DISTUI_RANK_FILES"] + ".exc", "w") as file:
                    json.dump(line, file)
        chained(kind, value, trace)

    sys.excepthook = noted


def attach():
    """Called once by sitecustomize in a rank."""
    quiet.survive_full_disk()
    note_exceptions()
    # Stacks also while the GIL is held: faulthandler writes from the signal handler itself.
    file = open(os.environ["DISTUI_RANK_FILES"] + ".stacks", "w")  # noqa: SIM115
    faulthandler.register(signal.SIGUSR2, file, all_threads=True)
    Hook(os.environ["DISTUI_HOOK"]).run()
