"""The launch form: its typed fields, the request that they mean, and the form's preview.

It also reads the input of a memory estimate from this machine: its GPUs, and the model sizes of a script.
"""

from __future__ import annotations

import glob
import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...presets import nccl, skypilot
from ...presets.finding import Finding, PlanError, PresetError
from ...presets.load import Library, check_name, check_saved, library, load, saved_text, user_dir
from ...presets.model import Loaded
from ...presets.render import named
from ...presets.request import Named, Request, option
from ...presets.sanitize import LONGEST, clean_text
from ...presets.script_tree import MOST_BYTES
from ...presets.secrets import mask_text
from ...presets.trusted_files import private_folder
from ...presets.worker_group import parse_nnodes
from ...presets.workload import Counted, acts_on_import, counted_from, name_of_gpu
from .. import file_io
from ..environment import pairs
from ..errors import RunError
from ..hub.sky_process import Candidate, candidates_for
from ..local_agent import check_python
from ..run_directories import free_name
from .check import findings
from .hosts import from_words
from .launch_settings import HOSTS, SKY, kind_of
from .prepare import prepare
from .prepared import Prepared, run_name
from .syntax_check import syntax_problem
from .words import count as count_of
from .words import nccl_pairs, request_of, shell_words, words_of

FIELDS = {flag: option(flag).label for flag in ("--on", "--gpus", "--cpus")}
"""The form's labels of command-line options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchForm:
    """The launch form as typed; the source parses it and reports problems as sentences."""

    preset: str
    script: str = ""
    args: str = ""
    """Words after the script, quoted as in a shell."""
    nproc: str = ""
    """ "" (the preset's), a number, "gpu" or "cpu"."""
    name: str = ""
    env: str = ""
    """K=V words, quoted as in a shell."""
    nccl: str = ""
    """NCCL_DEBUG level, or "" for the preset's."""
    place: str = ""
    """ "" or "local" (this machine), "sky" or one of SkyPilot's places, or "hosts A,B,…"."""
    nodes: str = ""
    gpus: str = ""
    """Accelerators of each node from SkyPilot: "H100:8"."""
    cpus: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    """More options by their field in `Request`, each as typed. FORM_OPTIONS lists them."""
    overrides: tuple[str, ...] = ()
    """Changed fields of the preset in the form of `--set`: "mesh.tp=2"."""
    nccl_presets: tuple[str, ...] = ()
    """Names of NCCL presets."""
    params: str = ""
    """For the memory estimate: the model's parameters, "7B"."""
    hardware: str = ""
    """For the memory estimate: the GPUs of a node, "8xA100-80GB"."""
    format: str = ""
    """For the memory estimate: a key of presets.memory.FORMATS."""
    seq: str = ""
    """For the memory estimate: positions of a sequence."""
    recompute: str = ""
    """For the memory estimate: "true" if every layer is recomputed in the backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPreview:
    """The result that the form would have."""

    text: str
    """The generated plan, exactly as `--dry-run` prints it, or "" if there is none."""
    problems: tuple[str, ...] = ()
    """Reasons why it cannot start, one sentence each."""
    asks: str = ""
    """Questions to hosts that the plan still needs, or ""."""
    yaml: str = ""
    """The SkyPilot task as SkyPilot gets it, with secrets masked, or ""."""
    findings: tuple[Finding, ...] = ()
    """Findings of the plan's check, the worst first."""
    preset: str = ""
    """The preset with its files, or "" if there is no plan."""


def with_free_name(form: LaunchForm) -> LaunchForm:
    """Return the form, under a free name if a live run has its name."""
    name = form.name or (run_name(form.script) if form.script else "")
    free = free_name(name) if name else ""
    return form if free == name else replace(form, name=free)


def asks(form: LaunchForm) -> str:
    """Return the open part of this form's plan, for its place in the preview. Raises RunError."""
    if kind_of(form.place) != HOSTS:
        return ""
    _request(form)
    named = ", ".join(host.destination for host in hosts(form))
    return (
        f"hosts: {named}\n"
        "# Enter asks each by ssh for its Python, torch, cores and GPUs, and shows the plan; nothing starts before it\n"
    )


def preview(form: LaunchForm, ask: bool = False) -> LaunchPreview:
    """Preview the form. Raises RunError, PresetError, PlanError.

    `ask`: query the named hosts.
    """
    open_ = "" if ask else asks(form)
    if open_:
        return LaunchPreview(text=open_, asks=open_)
    launch = prepared(form)
    problem = syntax_problem(launch.plan) if launch.order is None else ""
    return LaunchPreview(
        text=launch.text(),
        problems=(problem,) if problem else (),
        preset=named(launch.plan),
        yaml=launch.yaml,
        findings=tuple(findings(launch.plan, launch.asked or Request())),
    )


def prepared(form: LaunchForm) -> Prepared:
    """Plan the run that the form means. Raises RunError and PresetError."""
    return prepare(requested(form))


def requested(form: LaunchForm) -> Request:
    """Return the launch that the form means. Raises RunError."""
    request, kind = _request(form), kind_of(form.place)
    if kind == SKY:
        resources(form)
        return replace(request, on=form.place.strip(), gpus=form.gpus or None, cpus=form.cpus or None)
    if form.gpus or form.cpus:
        instead = "clear them, hosts have fixed ones" if kind == HOSTS else "clear them or set place to sky"
        raise RunError(f"GPUs and CPUs apply to SkyPilot only; {instead}")
    if kind == HOSTS:
        return replace(request, hosts=hosts(form))
    if form.nodes not in ("", "1"):
        raise RunError(f"{form.nodes} nodes need a place: sky, one of SkyPilot's, or hosts A,B")
    return request


def resources(form: LaunchForm) -> Request:
    """Return the requirements per node. Raises RunError."""
    wish = Request(on=form.place.strip(), gpus=form.gpus or None, cpus=form.cpus or None)
    try:
        return skypilot.check(wish, FIELDS)
    except PlanError as error:
        raise RunError(str(error)) from None


async def candidates(form: LaunchForm) -> list[Candidate]:
    """Return the nodes that SkyPilot would choose. Raises RunError. Takes seconds."""
    nodes = form.nodes.rpartition(":")[2] or "1"
    if not nodes.isdecimal() or not int(nodes):
        raise RunError(f"nodes {form.nodes}: a number from 1 on")
    return await candidates_for(resources(form), int(nodes))


def hosts(form: LaunchForm) -> tuple[Named, ...]:
    """Return the form's hosts. Raises RunError."""
    words = form.place.split(None, 1)
    if len(words) < 2:
        raise RunError("which hosts? type: hosts A,B,…")
    return tuple(from_words(words[1].replace(" ", ",")))


def _request(form: LaunchForm) -> Request:
    """Return the form's request. Raises RunError."""
    if not form.script.strip():
        raise RunError("no script yet: the path of the training script")
    nproc, nodes = form.nproc.strip(), form.nodes.strip()
    nccl = [f"DEBUG={form.nccl.strip()}"] if form.nccl.strip() else []
    args, env = shell_words(form.args, "arguments"), shell_words(form.env, "environment")
    return request_of(
        words_of(form.options),
        preset=form.preset,
        overrides=form.overrides,
        script=form.script.strip(),
        args=tuple(args),
        name=form.name.strip() or None,
        nnodes=count_of(nodes) if nodes else None,
        nproc_per_node=count_of(nproc) if nproc else None,
        env=pairs(env, "environment"),
        nccl=nccl_pairs(nccl),
        nccl_presets=form.nccl_presets,
    )


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


# -----------------------------------------------------------------------------------------------------------
# The sizes of a model that a script defines, from the training environment's interpreter.


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
        doing = {"reading": "cannot be read: ", "building": "has no model that can be built here: "}
        raise RunError(f"--script {path} {doing.get(str(answer.get('doing')), '')}{problem}")
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


# -----------------------------------------------------------------------------------------------------------
# The presets that the form lists, opens and saves.


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetEntry:
    name: str
    title: str
    summary: str
    """When to use it."""
    strategy: str = ""
    origin: str = ""
    """ "" (shipped), "yours" or "project"."""
    problem: str = ""
    """One sentence if it cannot be loaded, else ""."""


def listed(presets: Library) -> list[PresetEntry]:
    """List every preset of the library in its order. Unreadable files come last."""
    broken = [name for name in presets.problems if name not in presets.definitions]
    passed = [
        PresetEntry(
            name=clean_text(_named(text)),
            title="",
            summary="",
            origin="passed over",
            problem=clean_text(text, LONGEST),
        )
        for text in presets.passed
    ]
    return [*(_entry(name, presets) for name in (*presets.names, *broken)), *passed]


def _named(sentence: str) -> str:
    """Return the name of the file at the start of a sentence."""
    return sentence.partition(" is passed over")[0].rpartition("/")[2].partition(" ")[0]


def _entry(name: str, presets: Library) -> PresetEntry:
    defined = presets.definitions.get(name)
    kind = defined[-1].origin.partition(" ")[0] if defined else "user"
    origin = {"builtin": "", "user": "yours"}.get("user" if name in presets.problems else kind, kind)
    try:
        preset = load(name, presets=presets).preset
    except PresetError as error:
        problem = clean_text(str(error), LONGEST)
        return PresetEntry(name=clean_text(name), title="", summary="", origin=origin, problem=problem)
    title, summary = clean_text(mask_text(preset.title)), clean_text(mask_text(preset.summary), LONGEST)
    return PresetEntry(
        name=name, title=title, summary=summary, strategy=preset.strategy.kind, origin=origin
    )


class PresetLibrary:
    """The preset library, cached until the next list."""

    def __init__(self) -> None:
        self._library: Library | None = None

    def entries(self) -> list[PresetEntry]:
        """Read all presets again. An unreadable project file becomes an entry with its problem."""
        try:
            self._library = library()
        except PresetError as error:
            self._library = None
            return [
                PresetEntry(name="distui.toml", title="", summary="", origin="project", problem=str(error))
            ]
        return listed(self._library)

    def load(self, name: str, overrides: Sequence[str] = ()) -> Loaded:
        """Load one preset. Raises PresetError."""
        if self._library is None:
            self._library = library()
        return load(name, overrides, presets=self._library)


def save(name: str, form: LaunchForm, replace: bool, env: Mapping[str, str] = os.environ) -> str:
    """Write a form as a preset of the user, atomically, and return its path.

    Raises FileExistsError if the file exists and `replace` is False, RunError, PresetError and PlanError.
    """
    presets = library()
    text = saved_text(check_name(name), form.preset, form_overrides(form), presets)
    path = user_dir(env) / f"{name}.toml"
    check_saved(name, form.preset, text, presets)
    if path.exists() and not replace:
        raise FileExistsError(str(path))
    if path.exists() and name == form.preset:
        raise RunError(f"preset {name} cannot build on itself: choose another name")
    try:
        private_folder(path.parent)
        file_io.write_atomically(path, text.encode())
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from None
    return str(path)


def form_overrides(form: LaunchForm) -> tuple[str, ...]:
    """Return all values of a form that a preset can hold, in the form of `--set`. Raises RunError and PlanError."""
    overrides = list(form.overrides)
    if form.nproc:
        overrides.append(f"topology.nproc_per_node={form.nproc}")
    if form.nodes:
        fewest, most = parse_nnodes(form.nodes)
        overrides.append(f"topology.nnodes={most}")
        overrides += [f"topology.nnodes_min={fewest}"] if fewest is not None else []
    variables = nccl.combined(form.nccl_presets)
    env = pairs(shell_words(form.env, "environment"), "environment")
    if form.nccl:
        variables |= nccl_pairs([f"DEBUG={form.nccl}"])
    overrides += [f"nccl.{name}={value}" for name, value in variables.items()]
    overrides += [f"env.{name}={value}" for name, value in env.items()]
    return tuple(overrides)
