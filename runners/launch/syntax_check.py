"""Check that the training's interpreter can compile the script before a launch."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ...presets.plan import Plan
from ...presets.sanitize import clean_text
from ...presets.script_tree import InvalidSyntaxError, read
from ...presets.text_formats import Unreadable
from ..node.script_files import read_source

SECONDS = 20.0
_CODE = """
import sys, warnings
warnings.simplefilter("ignore")
try:
    compile(open(sys.argv[1], "rb").read(), sys.argv[1], "exec", dont_inherit=True)
except SyntaxError as error:
    print(error.lineno or 1, error.msg)
"""


def syntax_problem(plan: Plan) -> str:
    """Return a sentence if the script of a local plan is not valid Python, or "".

    distui's own parser comes first. If it refuses the script, the training's interpreter decides, which may be newer.
    """
    script = _script(plan)
    source = read_source(Path(script)) if script else None
    if source is None:
        return ""
    try:
        read(source)
    except InvalidSyntaxError:
        return _by_interpreter(plan, script)
    except Unreadable:
        return ""
    return ""


def _script(plan: Plan) -> str:
    """Return the path of the Python script, or ""."""
    if plan.launcher != "torchrun" or not plan.python or not plan.command or "--no-python" in plan.argv:
        return ""
    script = os.path.join(plan.cwd, plan.command[0])
    return script if plan.command[0].endswith(".py") and os.path.isfile(script) else ""


def _by_interpreter(plan: Plan, script: str) -> str:
    try:
        asked = subprocess.run(
            [plan.python, "-I", "-S", "-c", _CODE, script],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    line, _, message = asked.stdout.strip().partition(" ")
    if asked.returncode or not line.isdecimal():
        return ""
    return clean_text(f"{plan.command[0]}:{line}: syntax error ({message}): the script cannot run")
