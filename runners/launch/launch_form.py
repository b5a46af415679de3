"""The launch form: its typed fields, the request that they mean, its preview, and the preset that it saves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ...presets import skypilot
from ...presets.base_dirs import private_folder
from ...presets.finding import Finding, PlanError
from ...presets.load import check_name, library, user_dir
from ...presets.preset_text import check_saved, saved_text
from ...presets.rank_env import COMMAND_LINE
from ...presets.render import preset_with_files
from ...presets.request import Named, Request
from ..hub.sky_process import Candidate, candidates_for
from ..run import file_io
from ..run.errors import RunError
from ..run.run_directories import free_name
from .check import findings
from .hosts import from_words
from .launch_settings import HOSTS, SKY, kind_of
from .prepare import prepare
from .prepared import Prepared, run_name
from .preset_of_request import overrides_of
from .syntax_check import syntax_problem
from .words import count as count_of
from .words import nccl_pairs, request_of, shell_words, words_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchForm:
    """The launch form as typed; the functions below parse it, and raise RunError with a sentence."""

    preset: str = ""
    """ "" for a command or a task."""
    command: tuple[str, ...] = ()
    """A command that runs instead of a preset and a script."""
    task: str = ""
    """Path of a SkyPilot task that runs instead of a preset and a script."""
    script: str = ""
    args: str = ""
    """Words after the script, quoted as in a shell."""
    nproc: str = ""
    """ "" (the preset's), a number, "gpu" or "cpu"."""
    nccl_debug: str = ""
    """NCCL_DEBUG level, or "" for the preset's."""
    place: str = ""
    """ "" or "local" (this machine), "sky" or one of SkyPilot's places, or "hosts A,B,…"."""
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
    """For the memory estimate: the format of the script's weights, "fp32" or "bf16"."""
    lora: str = ""
    """For the memory estimate: "LoRA" or "QLoRA" if only adapters are trained."""
    experts: str = ""
    """For the memory estimate: experts of each mixture-of-experts layer."""
    seq: str = ""
    """For the memory estimate: positions of a sequence."""
    recompute: str = ""
    """For the memory estimate: "true" if every layer is recomputed in the backward pass."""

    @property
    def repeats(self) -> bool:
        """Whether it repeats a command or a task, which have no preset."""
        return bool(self.command or self.task)

    @property
    def name(self) -> str:
        """The name of the run, as typed or from what runs; "" without either."""
        runs = self.script or self.task.removesuffix(".yaml") or next(iter(self.command), "")
        return self.option("name") or (run_name(runs) if runs else "")

    def option(self, field: str) -> str:
        """Return the text of an option, by its field in `Request`; "" if it is empty."""
        return self.options.get(field, "").strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPreview:
    """The result that the form would have."""

    text: str
    """The generated plan, exactly as `--dry-run` prints it, or "" if there is none."""
    problems: tuple[str, ...] = ()
    """Reasons why it cannot start, one sentence each."""
    open_questions: str = ""
    """Questions to hosts that the plan still needs, or ""."""
    yaml: str = ""
    """The SkyPilot task as SkyPilot gets it, with secrets masked, or ""."""
    findings: tuple[Finding, ...] = ()
    """Findings of the plan's check, the worst first."""
    preset: str = ""
    """The preset with its files, or "" if there is no plan."""


def with_free_name(form: LaunchForm) -> LaunchForm:
    """Return the form, under a free name if another run has its name, so that a name means one run."""
    name = form.name
    free = free_name(name, beside_ended=True) if name else ""
    return form if free == name else replace(form, options={**form.options, "name": free})


def _open_questions(form: LaunchForm) -> str:
    """Return what hosts must be asked before there is a plan, for its place in the preview. Raises RunError."""
    if kind_of(form.place) != HOSTS:
        return ""
    _request(form)  # refuses an incomplete form
    destinations = ", ".join(host.destination for host in hosts(form))
    return (
        f"hosts: {destinations}\n"
        "# Enter asks each by ssh for its Python, torch, cores and GPUs, and shows the plan; nothing starts before it\n"
    )


def preview(form: LaunchForm, ask: bool = False) -> LaunchPreview:
    """Preview the form. Raises RunError, PresetError, PlanError.

    `ask`: query the named hosts.
    """
    questions = "" if ask else _open_questions(form)
    if questions:
        return LaunchPreview(text=questions, open_questions=questions)
    launch = prepared(form)
    problem = syntax_problem(launch.plan) if launch.order is None else ""
    return LaunchPreview(
        text=_before_start(launch.text(), launch.plan.run),
        problems=(problem,) if problem else (),
        preset=preset_with_files(launch.plan),
        yaml=_before_start(launch.yaml, launch.plan.run),
        findings=tuple(findings(launch.plan, launch.asked or Request())),
    )


def _before_start(text: str, run: str) -> str:
    """Replace the id, which the run gets at its start, and name the form as the origin of its variables."""
    text = text.replace(f" ({run})", "", 1).replace(run, "<run>")
    text = text.replace(run.rpartition("-")[2], "<id of the run>")
    return text.replace(f"  # {COMMAND_LINE}", "  # launch form")


def prepared(form: LaunchForm) -> Prepared:
    """Plan the run that the form means. Raises RunError and PresetError."""
    return prepare(requested(form))


def requested(form: LaunchForm) -> Request:
    """Return the launch that the form means. Raises RunError."""
    request, kind = _request(form), kind_of(form.place)
    if form.repeats:
        return request
    if kind == SKY:
        return _on_sky(form, request)
    if request.gpus or request.cpus:
        instead = "clear them, hosts have fixed ones" if kind == HOSTS else "clear them or set place to sky"
        raise RunError(f"GPUs and CPUs apply to SkyPilot only; {instead}")
    if kind == HOSTS:
        return replace(request, hosts=hosts(form))
    if form.option("nnodes") not in ("", "1"):
        raise RunError(f"{request.nnodes} nodes need a place: sky, one of SkyPilot's, or hosts A,B")
    return request


def _on_sky(form: LaunchForm, request: Request) -> Request:
    """Return a request with the form's requirements per node. Raises RunError."""
    try:
        return skypilot.check(replace(request, on=form.place.strip()))
    except PlanError as error:
        raise RunError(str(error)) from None


async def candidates(form: LaunchForm) -> list[Candidate]:
    """Return the nodes that SkyPilot would choose. Raises RunError. Takes seconds."""
    nodes = form.option("nnodes").rpartition(":")[2] or "1"  # the most of an elastic launch
    if not nodes.isdecimal() or not int(nodes):
        raise RunError(f"nodes {form.option('nnodes')}: a number from 1 on")
    return await candidates_for(_on_sky(form, request_without_script(form)), int(nodes))


def hosts(form: LaunchForm) -> tuple[Named, ...]:
    """Return the form's hosts. Raises RunError."""
    words = form.place.split(None, 1)
    if len(words) < 2:
        raise RunError("which hosts? type: hosts A,B,…")
    return tuple(from_words(words[1].replace(" ", ",")))


def _request(form: LaunchForm) -> Request:
    """Return the form's request. Raises RunError."""
    if not form.repeats and not form.script.strip():
        raise RunError("no script yet: the path of the training script")
    return request_without_script(form)


def request_without_script(form: LaunchForm) -> Request:
    """Return the form's request, even if there is no script yet. Raises RunError."""
    nproc, level = form.nproc.strip(), form.nccl_debug.strip()
    if form.repeats:
        return _repeated(form, level)
    return request_of(
        words_of(form.options),
        preset=form.preset,
        overrides=form.overrides,
        script=form.script.strip(),
        args=tuple(shell_words(form.args, "arguments")),
        nproc_per_node=count_of(nproc) if nproc else None,
        nccl=nccl_pairs([f"DEBUG={level}"] if level else []),
        nccl_presets=form.nccl_presets,
    )


def _repeated(form: LaunchForm, level: str) -> Request:
    """Return the request of a command or of a task. Raises RunError."""
    return request_of(
        words_of(form.options),
        command=form.command or None,
        task=form.task or None,
        on=form.place.strip() or "local",
        nccl=nccl_pairs([f"DEBUG={level}"] if level else []),
        nccl_presets=form.nccl_presets,
    )


def save(name: str, form: LaunchForm, overwrite: bool, env: Mapping[str, str] = os.environ) -> str:
    """Write a form as a preset of the user, atomically, and return its path.

    Raises FileExistsError if the file exists and `overwrite` is False, RunError, PresetError and PlanError.
    """
    presets = library()
    text = saved_text(check_name(name), form.preset, overrides_of(request_without_script(form)), presets)
    path = user_dir(env) / f"{name}.toml"
    if path.exists() and name == form.preset:  # the file would lose its own changes
        raise RunError(f"preset {name} cannot build on itself: choose another name")
    if path.exists() and not overwrite:
        raise FileExistsError(str(path))
    check_saved(name, text, presets)
    try:
        private_folder(path.parent)
        file_io.write_atomically(path, text.encode())
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from None
    return str(path)
