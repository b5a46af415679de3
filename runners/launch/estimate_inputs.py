"""What a memory estimate reads from this machine: its GPUs, and the sizes of the model that a script defines."""

from __future__ import annotations

import functools
import glob
import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ...presets.estimate.script_kind import kind_of_script
from ...presets.estimate.workload import Counted, acts_on_import, counted_from, name_of_gpu
from ...presets.finding import PlanError
from ...presets.script_tree import MOST_BYTES
from ..run import file_io
from ..run.errors import RunError
from ..run.machine import check_python


def hardware_here(root: str = "/") -> str:
    """Return "8xH100" if all GPUs are of one known model, else ""."""
    models = []
    for path in glob.glob(f"{root}proc/driver/nvidia/gpus/*/information"):
        try:
            match = re.search(r"^Model:\s*(.+)$", Path(path).read_text("utf-8", "replace"), re.MULTILINE)
        except OSError:
            return ""
        models.append(name_of_gpu(match[1].strip()) if match else "")
    return f"{len(models)}x{models[0]}" if models and models[0] and len(set(models)) == 1 else ""


def kind_of_file(path: str) -> str:
    """Return what parallelizes the model in a script: the key of a ScriptKind, "unknown" for an unreadable file."""
    try:
        stat = os.stat(path)
        return _kind_of_version(path, stat.st_mtime_ns, stat.st_size)
    except (OSError, ValueError):
        return "unknown"


@functools.lru_cache(maxsize=8)
def _kind_of_version(path: str, changed_ns: int, size: int) -> str:
    """Return the kind of one version of a file; the launch form asks with each drawn frame."""
    try:
        return kind_of_script(file_io.head(Path(path), MOST_BYTES + 1))
    except file_io.FileError:
        return "unknown"


COUNTING = Path(__file__).parent.parent / "inrank" / "parameter_count.py"
SECONDS = 120.0
"""Seconds for an import with many dependencies. A training would take longer."""


def count(
    python: str, path: str, name: str | None, args: Mapping[str, object], seconds: float = SECONDS
) -> Counted:
    """Count the model `name` of the file `path`, built with `args`. None selects the most likely model.

    The file is imported, but not run as a script, in a separate process without GPUs. Raises RunError.
    """
    try:
        why = acts_on_import(file_io.head(Path(path), MOST_BYTES + 1, streams=True))
    except file_io.FileError as error:
        raise RunError(f"--script {error}; give the path of a Python file") from None
    if why is not None:
        raise RunError(f"--script {path} {why}")
    question = json.dumps({"path": os.path.abspath(path), "name": name, "args": dict(args)})
    answer = _answer(check_python(python), path, question, seconds)
    problem = answer.get("error")
    if problem is not None:
        doing = {"reading": " cannot be read", "building": " has no model that can be built here"}
        raise RunError(f"--script {path}{doing.get(str(answer.get('doing')), '')}: {problem}")
    try:
        return counted_from(answer)
    except PlanError as error:
        raise RunError(f"--script {path}: {error}") from None


def _answer(python: str, path: str, question: str, seconds: float) -> dict[str, object]:
    """Return one JSON object from the process. Raises RunError."""
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
                os.killpg(process.pid, signal.SIGKILL)  # with the processes that the file started
    lines = [line for line in out.decode("utf-8", "replace").splitlines() if line.startswith("{")]
    if lines:
        answer: dict[str, object] = json.loads(lines[-1])
        return answer
    errors = err.decode("utf-8", "replace").strip().splitlines()
    raise RunError(
        f"--script {path} ended {python} without an answer ({errors[-1] if errors else 'no message'})"
    )
