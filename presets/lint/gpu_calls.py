"""The rule for a script that takes a GPU, for ranks that have none (L48)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..finding import Finding, Severity
from ..script_facts import Names
from ..script_tree import ScriptTree
from .lint_rules import issue

_CONDITIONS = (ast.If, ast.IfExp, ast.Try, ast.Match)
SET_DEVICE = "torch.cuda.set_device"
INIT_GROUP = "torch.distributed.init_process_group"
_ASKS = re.compile(r"cuda|gpu|device|accelerator|is_available|backend|nccl|cpu", re.I)
"""Words in the condition of an `if` that may check for a GPU."""


def without_gpu(tree: ScriptTree, names: Names, asks: bool, file: str) -> Iterator[Finding]:
    """Report the first call that fails without a GPU. `asks`: True if the script checks for a GPU anywhere."""
    calls = [(call, what) for call in tree.of(ast.Call) if (what := _needs_gpu(call, names))]
    for call, what in sorted(calls, key=lambda pair: pair[0].lineno):
        conditions = [outer for outer in tree.around(call) if isinstance(outer, _CONDITIONS)]
        if any(map(_may_ask_for_gpu, conditions)):
            continue
        text = f"The ranks run on CPU (backend gloo), and {what} fails without a GPU."
        severity: Severity = "warning" if asks or conditions else "error"
        yield issue("L48", f"{file}:{call.lineno}", text, value=what, severity=severity)
        return


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


def _may_ask_for_gpu(condition: ast.AST) -> bool:
    """Return True if a condition may check for a GPU: by its words, or because a failure of the call is caught."""
    if isinstance(condition, ast.If | ast.IfExp):
        return _ASKS.search(ast.unparse(condition.test)) is not None
    return True
