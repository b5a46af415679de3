"""The rule for a script that takes a GPU, for ranks that have none (L48)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..finding import Finding, Severity
from ..script_facts import Names
from ..script_tree import ScriptTree
from .lint_rules import issue

SET_DEVICE = "torch.cuda.set_device"
INIT_GROUP = "torch.distributed.init_process_group"
_ASKS = re.compile(r"cuda|gpu|device|accelerator|is_available|backend|nccl|cpu", re.I)
"""Words in the condition of an `if` that may check for a GPU."""
_CAUGHT = "try"
"""Stands for a condition if a failure of the call is caught, or a `match` decides."""


@dataclass(frozen=True, slots=True)
class GuardedCall:
    """A call of a script that fails without a GPU, and the conditions around it."""

    node: ast.Call
    what: str
    conditions: tuple[str, ...]

    @property
    def may_be_skipped(self) -> bool:
        """True if a condition may check for a GPU."""
        return any(test == _CAUGHT or _ASKS.search(test) for test in self.conditions)


def without_gpu(tree: ScriptTree, names: Names, asks: bool, file: str) -> Iterator[Finding]:
    """Report the first call that fails without a GPU. `asks`: True if the script checks for a GPU anywhere."""
    for call in sorted(_calls(tree, names), key=lambda call: call.node.lineno):
        if call.may_be_skipped:
            continue
        text = f"The ranks run on CPU (backend gloo), and {call.what} fails without a GPU."
        severity: Severity = "warning" if asks or call.conditions else "error"
        yield issue("L48", f"{file}:{call.node.lineno}", text, value=call.what, severity=severity)
        return


def _calls(tree: ScriptTree, names: Names) -> Iterator[GuardedCall]:
    stack: list[tuple[ast.AST, tuple[str, ...]]] = [(tree.module, ())]
    while stack:
        node, conditions = stack.pop()
        if isinstance(node, ast.Call) and (what := _needs_gpu(node, names)):
            yield GuardedCall(node, what, conditions)
        inside = conditions + _conditions(node)
        stack += [(child, inside) for child in ast.iter_child_nodes(node)]


def _needs_gpu(call: ast.Call, names: Names) -> str:
    """Return the call in short form if it fails without a GPU, else ""."""
    full = names.full(call.func)
    if full == SET_DEVICE:
        return full
    if full != INIT_GROUP:
        return ""
    given = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "backend")]
    is_nccl = any(isinstance(value, ast.Constant) and value.value == "nccl" for value in given)
    return f'{INIT_GROUP}("nccl")' if is_nccl else ""


def _conditions(node: ast.AST) -> tuple[str, ...]:
    """Return the condition under which the parts of a node run, or () if they always run."""
    if isinstance(node, ast.If | ast.IfExp):
        text = ast.unparse(node.test)
        return () if text.startswith("__name__") else (text,)
    return (_CAUGHT,) if isinstance(node, ast.Try | ast.Match) else ()
