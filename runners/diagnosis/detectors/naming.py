"""How findings name ranks, nodes, source lines and durations."""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypedDict

from ...formatting import spans_text
from ...model import Collective, Site
from ...state import RunState

# -----------------------------------------------------------------------------------------------------------
# How findings name ranks, nodes, places and times, so that all of them read alike.


def host(state: RunState, node: int) -> str:
    """What a user calls a node."""
    entry = state.nodes.get(node)
    return (entry.host if entry is not None else "") or f"node {node}"


def nodes_of(state: RunState, ranks: Iterable[int]) -> list[int]:
    """Numbers of the nodes that some ranks are on."""
    return sorted({state.ranks[rank].place.node for rank in ranks if rank in state.ranks})


class About(TypedDict):
    """Whom a finding is about: its fields of these names."""

    rank: int
    ranks: tuple[int, ...]
    node: int | None


def about(state: RunState, ranks: Sequence[int]) -> About:
    """Some ranks as a finding names them: the first, all where there are several, and their node where it is one."""
    nodes = nodes_of(state, ranks)
    return {
        "rank": ranks[0],
        "ranks": tuple(ranks) if len(ranks) > 1 else (),
        "node": nodes[0] if len(nodes) == 1 else None,
    }


def several(state: RunState) -> bool:
    """Whether ranks are on more than one node, so that a node has to be named."""
    return len(nodes_of(state, state.ranks)) > 1


def who(state: RunState, ranks: Sequence[int]) -> str:
    """ "rank 9 on gpu-b"; the node only where there are several, and where it is one."""
    nodes = nodes_of(state, ranks)
    where = f" on {host(state, nodes[0])}" if len(nodes) == 1 and several(state) else ""
    return spans_text("rank", ranks) + where


def site_text(site: Site) -> str:
    """ "train.py:33 load"."""
    return f"{site.file.rpartition('/')[2]}:{site.line} {site.name}"


def stack_text(sites: Iterable[Site]) -> str:
    """Frames of a stack, innermost first, as one line."""
    return ", ".join(site_text(site) for site in sites)


def call_text(call: Collective) -> str:
    """ "all_reduce #42"; one that only a stack tells of has no number."""
    return f"{call.op} #{call.seq}" if call.seq and not call.p2p else call.op


# -----------------------------------------------------------------------------------------------------------
# What a stack says of where a rank is: data loader, checkpoint, lock, store, collective, the user's own code.


class Kind(enum.StrEnum):
    """What a rank sits in."""

    LOADER = "loader"
    CHECKPOINT = "checkpoint"
    COMPILE = "compile"
    STORE = "store"
    """Process groups being made: rendezvous, key-value store, first connections."""
    COLLECTIVE = "collective"
    DEBUGGER = "debugger"
    SUBPROCESS = "subprocess"
    LOCK = "lock"
    NETWORK = "network"
    IMPORT = "import"
    TORCH = "torch"
    CODE = "code"
    """Nothing that is known: the user's own code, or a library's."""
    UNKNOWN = "unknown"
    """No stack."""


class RankPosition(NamedTuple):
    """Where a rank is."""

    kind: Kind
    site: Site | None = None
    """The frame to name: the innermost of the user's own code, else of a library, else the innermost."""
    op: str = ""
    """COLLECTIVE and STORE: torch's function, "all_reduce", "new_group"."""


class _Rule(NamedTuple):
    kind: Kind
    path: re.Pattern[str]
    names: re.Pattern[str]


def _rule(kind: Kind, path: str, names: str = "") -> _Rule:
    return _Rule(kind, re.compile(path), re.compile(names))


_STRONG = (
    _rule(
        Kind.STORE,
        r"/torch/distributed/distributed_c10d\.py$",
        r"^(init_process_group|_new_process_group_helper|_store_based_barrier|_?new_group\w*|split_group"
        r"|_new_subgroups\w*|destroy_process_group|_shutdown_\w+)$",
    ),
    _rule(Kind.STORE, r"/torch/distributed/(rendezvous\.py$|elastic/|device_mesh\.py$)"),
    _rule(
        Kind.COLLECTIVE,
        r"/torch/distributed/(distributed_c10d|_functional_collectives|nn/functional)\.py$",
        r"^(?!wrapper$|_object_to_tensor$|_tensor_to_object$)",
    ),
    _rule(Kind.DEBUGGER, r"/(pdb|bdb|ipdb/\w+|debugpy/.+|pydevd[\w/]*|IPython/terminal/debugger)\.py$"),
    _rule(Kind.LOADER, r"/(torch/utils/data|torchdata|webdataset|nvidia/dali|streaming/base)/"),
    _rule(
        Kind.CHECKPOINT,
        r"/(torch/serialization\.py$|torch/distributed/checkpoint/|safetensors/|accelerate/checkpointing\.py$"
        r"|deepspeed/.*checkpoint|(pytorch_)?lightning/.*checkpoint|torchsnapshot/)",
    ),
    _rule(
        Kind.COMPILE,
        r"/(torch/_dynamo/(convert_frame|symbolic_convert|output_graph)\.py$"
        r"|torch/_inductor/(compile_fx|async_compile|codecache|graph|scheduler|cpp_builder|select_algorithm)\.py$"
        r"|torch/_inductor/(codegen|compile_worker)/|torch/utils/cpp_extension\.py$|triton/compiler/)",
        r"^(?!__call__$|run$)",
    ),
)
"""The innermost frame that one of them fits says what the stack is about."""

_WEAK = (
    _rule(Kind.SUBPROCESS, r"/(subprocess|multiprocessing/popen_\w+)\.py$"),
    _rule(
        Kind.NETWORK,
        r"/(socket|ssl|http/client|urllib/request)\.py$|/(urllib3|requests|httpx|httpcore|botocore|aiohttp"
        r"|huggingface_hub|wandb|mlflow|s3fs|gcsfs)/",
    ),
    _rule(
        Kind.LOCK,
        r"/(threading|queue|concurrent/futures/\w+|multiprocessing/(pool|queues|connection|synchronize)|filelock/\w+"
        r"|asyncio/\w+)\.py$",
    ),
    _rule(Kind.IMPORT, r"^<frozen importlib"),
)
"""Asked where no strong one fits."""

_SAVES = re.compile(r"^_?(save|load|write|restore|dump)\w*(check_?point|ckpt|snapshot|state_?dict)", re.I)
"""Functions whose name says what they do, whoever wrote them."""
_LIBRARY = re.compile(r"/(site|dist)-packages/")
_STANDARD = re.compile(r"/python3\.\d+t?/|/python3\d\.zip/|^<")
_TORCH = re.compile(r"/torch/(?!\.)")


class _StackFrame(NamedTuple):
    strong: Kind | None
    weak: Kind | None
    level: int
    """0: the user's own code, 1: a library, 2: torch, 3: the standard library."""


@functools.lru_cache(maxsize=8192)
def _frame(file: str, name: str) -> _StackFrame:
    path = file if file.startswith(("/", "<")) else f"/{file}"
    strong = next((row.kind for row in _STRONG if row.path.search(path) and row.names.search(name)), None)
    weak = next((row.kind for row in _WEAK if row.path.search(path)), None)
    if weak is None and _SAVES.search(name):
        weak = Kind.CHECKPOINT
    return _StackFrame(strong, weak, _level(path))


def _level(path: str) -> int:
    if _LIBRARY.search(path):
        return 2 if _TORCH.search(path) else 1
    return 3 if _STANDARD.search(path) else 0


def place(stack: Sequence[Site]) -> RankPosition:
    """Where a rank with this stack is; the stack is innermost first."""
    if not stack:
        return RankPosition(Kind.UNKNOWN)
    frames = [(site, _frame(site.file, site.name)) for site in stack]
    named = min(frames, key=lambda pair: pair[1].level)[0]
    for site, frame in frames:
        if frame.strong is not None:
            distributed = frame.strong in (Kind.COLLECTIVE, Kind.STORE)
            return RankPosition(frame.strong, named, _op(stack, site) if distributed else "")
    weak = next((frame.weak for _, frame in frames if frame.weak is not None), None)
    if weak is not None:
        return RankPosition(weak, named)
    return RankPosition(Kind.TORCH if frames[0][1].level == 2 else Kind.CODE, named)


def distributed(stack: Sequence[Site]) -> bool:
    """Whether a stack may be of a wait in torch.distributed: a quick look before `place`."""
    return any("/torch/distributed/" in site.file for site in stack[:4])


def _op(stack: Sequence[Site], inner: Site) -> str:
    """The public function that the innermost frame of torch.distributed belongs to."""
    if not inner.name.startswith("_"):
        return inner.name
    outer = (site.name for site in stack if "/torch/distributed/" in site.file)
    return next((name for name in outer if not name.startswith("_") and name != "wrapper"), inner.name)


def users(stack: Sequence[Site], most: int = 4) -> tuple[Site, ...]:
    """The frames that are worth telling: the user's own, else a library's, else the innermost."""
    own = [site for site in stack if _frame(site.file, site.name).level == 0]
    libraries = [site for site in stack if _frame(site.file, site.name).level == 1]
    return tuple((own or libraries or list(stack))[:most])


def own_code(site: Site) -> bool:
    """Whether a frame is of the user's own code."""
    return _frame(site.file, site.name).level == 0
