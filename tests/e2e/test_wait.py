"""`distui wait` on runs that have ended: the exit code, and the line that says how."""

from __future__ import annotations

from distui.runners.run.model import Outcome

from .runs import World
from .test_mcp import Caller, serve
from .written import Attempt, write


def test_a_wait_says_how_a_run_ended(world: World) -> None:
    words = ("exec", "--name", "night", "--", "true")
    write(world, *words, attempts=[Attempt(outcome=Outcome.FAILED, text="CUDA out of memory")])
    done = world.distui("wait", "night")
    assert (done.code, done.err) == (1, "")
    assert done.out.startswith("night failed: ")
    assert done.out.count("\n") == 1
    assert world.distui("wait", "night", "--json").json()["state"] == "failed"
    write(world, "exec", "--name", "good", "--", "true")
    assert world.distui("wait", "good").fine().out == "good succeeded: the command ended with exit code 0\n"


def test_a_model_gets_the_same_sentence(world: World) -> None:
    write(world, "exec", "--name", "night", "--", "true", attempts=[Attempt(outcome=Outcome.FAILED)])

    async def check(caller: Caller) -> None:
        answer = await caller.answer("wait", run="night")
        assert answer["data"] == {"reached": False, "timed_out": False, "lost": False}
        assert answer["notes"][0].startswith("night failed: ")

    serve(world, check)
