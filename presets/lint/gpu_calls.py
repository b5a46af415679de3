"""Rules for the calls that select a training script's GPU: a missing GPU, or the wrong one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..finding import Finding, Severity
from ..script_support import Names
from ..script_tree import ScriptTree
from .lint_rules import issue

SET_DEVICE = "torch.cuda.set_device"
INIT_GROUP = "torch.distributed.init_process_group"
_ASKS = re.compile(r"cuda|gpu|device|accelerator|is_available|backend|nccl|cpu", re.I)
"""Words in the condition of an `if` that may check for a GPU."""


@dataclass(frozen=True, slots=True)
class GuardedCall:
    """One call of a script, and the conditions around it."""

    full: str
    node: ast.Call
    tests: tuple[str, ...]
    """Conditions, outermost first. "try" means that its failure is caught."""


def calls(tree: ScriptTree, names: Names) -> list[GuardedCall]:
    """Return the script's calls of SET_DEVICE and INIT_GROUP, in source order."""
    found: list[GuardedCall] = []
    stack: list[tuple[ast.AST, tuple[str, ...]]] = [(tree.module, ())]
    while stack:
        node, tests = stack.pop()
        if isinstance(node, ast.Call) and (full := names.full(node.func)) in (SET_DEVICE, INIT_GROUP):
            found.append(GuardedCall(full, node, tests))
        deciding = _tests(node)
        inside = (*tests, *deciding) if deciding else tests
        stack += [(child, inside) for child in ast.iter_child_nodes(node)]
    return sorted(found, key=lambda call: call.node.lineno)


def _tests(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.If | ast.IfExp):
        text = ast.unparse(node.test)
        return () if text.startswith("__name__") else (text,)
    if isinstance(node, ast.Try | ast.Match):
        return ("try",)
    return ()


def without_gpu(made: Sequence[GuardedCall], asks: bool, file: str) -> Iterator[Finding]:
    """Report the first call that fails without a GPU. Calls in a condition that may check for a GPU are skipped.

    `asks`: True if the script checks for a GPU anywhere.
    """
    for call in filter(_takes_gpu, made):
        if any(test == "try" or _ASKS.search(test) for test in call.tests):
            continue
        what = call.full if call.full == SET_DEVICE else f'{INIT_GROUP}("nccl")'
        text = f"The ranks run on CPU (backend gloo), and {what} fails without a GPU."
        severity: Severity = "warning" if asks or call.tests else "error"
        yield issue("L48", f"{file}:{call.node.lineno}", text, value=what, severity=severity)
        return


def _takes_gpu(call: GuardedCall) -> bool:
    if call.full == SET_DEVICE:
        return True
    given = [*call.node.args[:1], *(word.value for word in call.node.keywords if word.arg == "backend")]
    return any(isinstance(value, ast.Constant) and value.value == "nccl" for value in given)


def global_rank(
    made: Sequence[GuardedCall],
    assigned: Mapping[str, Sequence[ast.expr]],
    file: str,
    nnodes: int | None,
) -> Iterator[Finding]:
    """Report calls that use the global rank as a GPU number."""
    for call in made:
        if call.full != SET_DEVICE or len(call.node.args) != 1 or nnodes == 1:
            continue
        source = _rank(call.node.args[0], assigned)
        if source:
            text = f"{source} counts ranks over all nodes: from the second node on there is no such GPU."
            severity: Severity = "warning" if (nnodes or 1) > 1 else "note"
            yield issue("L50", f"{file}:{call.node.lineno}", text, value=source, severity=severity)


def _rank(node: ast.expr, assigned: Mapping[str, Sequence[ast.expr]], deep: int = 0) -> str:
    """Return the expression that reads the global rank, or "" if there is none, or if it is only an operand."""
    inner = _inside(node, assigned)
    if inner is not None:
        return _rank(inner, assigned, deep + 1) if deep < 4 else ""
    text = ast.unparse(node).replace('"', "'")
    if isinstance(node, ast.Call) and text.endswith("get_rank()"):
        return text
    if re.fullmatch(r"(os\.)?environ\['RANK'\]|(os\.)?(environ\.get|getenv)\('RANK'.*\)", text):
        return text
    return ""


def _inside(node: ast.expr, assigned: Mapping[str, Sequence[ast.expr]]) -> ast.expr | None:
    """Return the only value of a name, or the argument of int(), else None."""
    if isinstance(node, ast.Name):
        values = assigned.get(node.id, [])
        return values[0] if len(values) == 1 else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "int":
        return node.args[0] if len(node.args) == 1 else None
    return None
