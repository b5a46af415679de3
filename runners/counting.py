"""The sizes of a model that a script defines, read by the training environment's interpreter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ..presets.errors import PlanError
from ..presets.memory_script import Counted, acts_on_import, counted_from
from .errors import RunError
from .local import MOST_SOURCE, check_python

COUNTING = Path(__file__).parent / "inrank" / "counting.py"
SECONDS = 120.0
"""Reading a file with many imports takes a while; training takes longer."""


def count(
    python: str, path: str, name: str | None, args: Mapping[str, object], seconds: float = SECONDS
) -> Counted:
    """What the model `name` of the file `path`, called with `args`, has; None: the one it seems to be.

    The file is imported, not run, in a process of its own without GPUs. Raises RunError.
    """
    why = acts_on_import(_source(path))
    if why is not None:
        raise RunError(f"--script {path} {why}")
    question = json.dumps({"path": os.path.abspath(path), "name": name, "args": dict(args)})
    answer = _answer(check_python(python), path, question, seconds)
    error = answer.get("error")
    if error is not None:
        doing = {"reading": "cannot be read: ", "building": "has no model that can be built here: "}
        raise RunError(f"--script {path} {doing.get(str(answer.get('doing')), '')}{error}")
    try:
        return counted_from(answer)
    except PlanError as error:
        raise RunError(f"--script {path}: {error}") from None


def _source(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MOST_SOURCE)
    except OSError as error:
        raise RunError(f"--script {path}: {error.strerror}; give the path of a Python file") from None


def _answer(python: str, path: str, question: str, seconds: float) -> dict[str, object]:
    """One object of JSON. Raises RunError."""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            [python, str(COUNTING)], stdin=pipe, stdout=pipe, stderr=pipe, env=env, start_new_session=True
        )
    except OSError as error:
        raise RunError(
            f"{python} cannot be executed ({error.strerror}): give another with --python"
        ) from None
    with process:
        try:
            out, err = process.communicate(f"{question}\n".encode(), seconds)
        except subprocess.TimeoutExpired:
            raise RunError(
                f"--script {path} was not read within {seconds:g} s: name a function that only builds the model, "
                "as PATH:NAME, or give --params"
            ) from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with what the file started
    lines = [line for line in out.decode("utf-8", "replace").splitlines() if line.startswith("{")]
    if lines:
        found: dict[str, object] = json.loads(lines[-1])
        return found
    said = err.decode("utf-8", "replace").strip().splitlines()
    raise RunError(
        f"--script {path} ended {python} without an answer ({said[-1] if said else 'no message'})"
    )
