"""What ranks do before their first step: by stacks as they are in processes of these libraries, and by a real lock."""

from __future__ import annotations

from each import for_each

from distui.runners.diagnosis.first_step import doing_words, no_step_yet
from distui.runners.run.model import (
    AttemptStarted,
    Event,
    PulseTick,
    RankChanged,
    RankPhase,
    RankPlace,
    RankTick,
    Stamped,
)
from distui.runners.run.pulse import Pulse, Site
from distui.runners.run.samples import RankSample
from distui.runners.run.state import RunState

LIB = "/srv/env/lib/python3.12/site-packages"
OWN = Site("/data/u/train.py", 12, "main")


@for_each(
    ("file", "name", "words"),
    [
        (f"{LIB}/torch/utils/file_baton.py", "wait", "waiting for another process that builds it"),
        (f"{LIB}/torch/utils/cpp_extension.py", "_run_ninja_build", "building an extension of C++ or CUDA"),
        (f"{LIB}/deepspeed/ops/op_builder/builder.py", "jit_load", "building an extension of C++ or CUDA"),
        (f"{LIB}/filelock/_api.py", "acquire", "waiting for a file lock"),
        (f"{LIB}/huggingface_hub/file_download.py", "http_get", "downloading"),
        (f"{LIB}/torch/hub.py", "download_url_to_file", "downloading"),
        (f"{LIB}/datasets/arrow_dataset.py", "_map_single", "preparing a dataset"),
        (f"{LIB}/torch/_inductor/codecache.py", "load", "compiling"),
        (f"{LIB}/safetensors/torch.py", "load_file", "loading or saving weights"),
        ("<frozen importlib._bootstrap>", "_call_with_frames_removed", "importing modules"),
        (
            f"{LIB}/torch/distributed/rendezvous.py",
            "_env_rendezvous_handler",
            "waiting for the other ranks to join",
        ),
        ("/data/u/model.py", "forward", ""),
    ],
)
def test_a_stack_in_words(file: str, name: str, words: str) -> None:
    inner = (
        Site("/usr/lib/python3.12/subprocess.py", 500, "communicate")
        if "build" in name
        else Site(file, 7, name)
    )
    assert doing_words((inner, Site(file, 7, name), OWN)) == words


def state_of(*stacks: tuple[Site, ...]) -> RunState:
    """Ranks with these stacks, looked at 20 s after the attempt began, at unix time 120."""
    state = RunState()
    places = tuple(RankPlace(rank, rank, 0) for rank in range(len(stacks)))
    events: list[Event] = [
        AttemptStarted(1, "launch", len(stacks), places, {}),
        *(RankChanged(1, rank, RankPhase.RUNNING, rank, 1000 + rank) for rank in range(len(stacks))),
    ]
    for number, event in enumerate(events, 1):
        state.apply(Stamped(100.0, event, number))
    pulses = tuple(
        Pulse(rank, 120.0, 1000 + rank, hook=True, stack=stack) for rank, stack in enumerate(stacks)
    )
    state.apply(Stamped(120.0, PulseTick(pulses)))
    return state


COMPILES = (Site(f"{LIB}/torch/_inductor/compile_fx.py", 9, "compile_fx_inner"), OWN)
IMPORTS = (Site("<frozen importlib._bootstrap>", 9, "_find_and_load"), OWN)


def test_ranks_that_do_the_same_are_told_together() -> None:
    assert no_step_yet(state_of(COMPILES, COMPILES), 121.0) == "compiling"
    assert no_step_yet(state_of(COMPILES, COMPILES, IMPORTS), 121.0) == (
        "compiling (ranks 0, 1), importing modules (rank 2)"
    )
    assert no_step_yet(state_of(COMPILES, (OWN,)), 121.0) == "compiling (rank 0)"
    assert no_step_yet(state_of((OWN,), (OWN,)), 121.0) == ""


def test_nothing_is_told_of_young_attempts_old_stacks_and_ranks_that_step() -> None:
    state = state_of(COMPILES)
    assert no_step_yet(state, 102.0) == ""
    assert no_step_yet(state, 180.0) == ""
    state.apply(Stamped(121.0, RankTick((RankSample(0, 1000, step=0),))))
    assert no_step_yet(state, 122.0) == "compiling"
    state.apply(Stamped(122.0, RankTick((RankSample(0, 1000, step=1),))))
    assert no_step_yet(state, 123.0) == ""


def test_modules_that_download_do_not_download_while_torch_imports_them() -> None:
    find, execute = (
        Site("<frozen importlib._bootstrap>", 9, name)
        for name in ("_find_and_load", "_call_with_frames_removed")
    )
    nested = (
        Site("/usr/lib/python3.12/urllib/request.py", 88, "<module>"),
        execute,
        find,
        Site(f"{LIB}/torch/hub.py", 20, "<module>"),
        execute,
        find,
        Site(f"{LIB}/torch/__init__.py", 2000, "<module>"),
        execute,
        find,
        OWN,
    )
    assert doing_words(nested) == doing_words(nested[1:]) == "importing modules"
