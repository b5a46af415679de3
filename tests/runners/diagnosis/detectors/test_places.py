"""What stacks say, as Python 3.11 and torch 2.13 make them."""

from __future__ import annotations

from each import for_each

from distui.runners.diagnosis.activity import Kind, own_code, position_of, telling_frames, works
from distui.runners.run.pulse import Pulse, Site

from .hang_rig import (
    IN_ALL_REDUCE,
    IN_INIT,
    IN_LOADER,
    IN_MONITORED,
    IN_NEW_GROUP,
    IN_RECV,
    IN_SAVE,
    LOAD,
    PYTHON,
    STEP,
    TORCH,
)

USER = Site("/job/train.py", 30, "main")


def lib(path: str, name: str) -> Site:
    """A frame of the standard library."""
    return Site(PYTHON + path, 1, name)


def torch(path: str, name: str) -> Site:
    """A frame of torch."""
    return Site(TORCH + path, 1, name)


def package(path: str, name: str) -> Site:
    """A frame of an installed package."""
    return Site(f"/venv/lib/python3.11/site-packages/{path}", 1, name)


GATHER = torch("distributed/distributed_c10d.py", "gather_object")


@for_each(
    ("stack", "kind"),
    [
        ((), Kind.UNKNOWN),
        (LOAD, Kind.CODE),
        (IN_LOADER, Kind.LOADER),
        (
            (Site("/job/data.py", 17, "__getitem__"), torch("utils/data/_utils/fetch.py", "fetch"), USER),
            Kind.LOADER,
        ),
        (IN_SAVE, Kind.CHECKPOINT),
        ((Site("/job/io.py", 21, "write"), torch("serialization.py", "_save"), USER), Kind.CHECKPOINT),
        ((Site("/job/train.py", 9, "save_checkpoint"), USER), Kind.CHECKPOINT),
        ((package("safetensors/torch.py", "save_file"), USER), Kind.CHECKPOINT),
        ((GATHER, torch("distributed/checkpoint/utils.py", "reduce_scatter"), USER), Kind.COLLECTIVE),
        (IN_ALL_REDUCE, Kind.COLLECTIVE),
        (IN_INIT, Kind.STORE),
        (IN_NEW_GROUP, Kind.STORE),
        (IN_MONITORED, Kind.COLLECTIVE),
        ((lib("pdb.py", "interaction"), lib("bdb.py", "dispatch_line"), USER), Kind.DEBUGGER),
        (
            (lib("selectors.py", "select"), lib("subprocess.py", "_communicate"), USER),
            Kind.SUBPROCESS,
        ),
        ((lib("threading.py", "wait"), lib("queue.py", "get"), USER), Kind.LOCK),
        ((lib("socket.py", "readinto"), lib("http/client.py", "begin"), USER), Kind.NETWORK),
        ((Site("<frozen importlib._bootstrap>", 241, "_call"), USER), Kind.IMPORT),
        ((torch("autograd/graph.py", "_engine_run_backward"), torch("_tensor.py", "backward"), USER), Kind.TORCH),
        ((torch("_inductor/codecache.py", "compile"), torch("_dynamo/convert_frame.py", "x"), USER), Kind.COMPILE),
        ((torch("nn/functional.py", "linear"), torch("_dynamo/eval_frame.py", "compile_wrapper"), USER), Kind.TORCH),
        ((torch("utils/checkpoint.py", "checkpoint"), USER), Kind.TORCH),
        ((package("pandas/core/frame.py", "sort_values"), USER), Kind.CODE),
    ],
)  # fmt: skip
def test_kinds(stack: tuple[Site, ...], kind: Kind) -> None:
    assert position_of(stack).kind is kind


@for_each(
    ("stack", "op"),
    [
        (IN_ALL_REDUCE, "all_reduce"),
        (IN_RECV, "recv"),
        (IN_INIT, "init_process_group"),
        (IN_NEW_GROUP, "new_group"),
        (IN_MONITORED, "monitored_barrier"),
        (LOAD, ""),
    ],
)
def test_functions_of_torch_distributed(stack: tuple[Site, ...], op: str) -> None:
    assert position_of(stack).op == op


def test_the_users_own_code_is_named_first_then_a_library() -> None:
    assert position_of(IN_LOADER).site == STEP[1]
    installed = (lib("threading.py", "wait"), package("trl/train.py", "train"), torch("x.py", "y"))
    assert position_of(installed).site == installed[1]
    assert position_of(IN_INIT[:2]).site == IN_INIT[0]
    assert telling_frames(IN_LOADER) == STEP[1:]


@for_each(
    ("file", "own"),
    [
        ("/job/train.py", True),
        ("train.py", True),
        ("/data/me/python3.11/train.py", True),
        ("/opt/pytorch/torch/functional.py", False),
        ("/src/torch/_tensor.py", False),
        ("/src/torch/jit/_trace.py", False),
        ("/usr/lib/python3.11/queue.py", False),
        ("/opt/conda/lib/python3.13t/queue.py", False),
        ("/usr/lib/python311.zip/queue.py", False),
        ("/venv/lib/python3.11/site-packages/trl/train.py", False),
        ("<frozen runpy>", False),
        ("/src/distui/runners/launch/launcher.py", False),
        ("/src/distui/presets/script_support.py", False),
        ("/src/distui/presets/examples/chargpt.py", True),
    ],
)
def test_whose_code_a_file_is(file: str, own: bool) -> None:
    assert own_code(file) is own


@for_each(
    ("before", "after", "stepped"),
    [
        ((True, 3), (True, 4), True),
        ((True, 4), (True, 4), False),
        ((True, None), (True, 2), True),  # it had no optimizer
        ((True, None), (True, 0), False),
        ((False, None), (True, 500), False),  # its hook did not answer
        ((True, 3), (False, None), False),
    ],
)
def test_an_unknown_step_is_no_progress(
    before: tuple[bool, int | None], after: tuple[bool, int | None], stepped: bool
) -> None:
    earlier, later = (Pulse(0, at, hook=hook, step=step) for at, (hook, step) in enumerate((before, after)))
    assert works(earlier, later) is stepped
