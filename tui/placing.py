"""From the launch form to a plan: on this machine, on nodes that SkyPilot brings, or on hosts that the user names."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from ..presets.errors import PlanError
from ..presets.launchers import skypilot
from ..presets.launchers.skypilot import Resources
from ..presets.plan import Request
from ..runners.errors import RunError
from . import starting
from .follow import LaunchForm, Preview
from .starting import Prepared, nccl_pairs, pairs

# What only some places need is imported where it is used.
if TYPE_CHECKING:
    from ..runners.hosts.names import Named
    from ..runners.hub.candidates import Candidate
    from .hosting import Ordered as OnHosts
    from .ordering import Ordered

LOCAL, SKY, HOSTS = "local", "sky", "hosts"


def kind_of(place: str) -> str:
    """ "local", "sky" or "hosts": what a place of the form is."""
    word = place.split()[0].rstrip(":") if place.split() else LOCAL
    return word if word in (LOCAL, HOSTS) else SKY


def asks(form: LaunchForm) -> str:
    """What is still open in the plan of this form, for its place in the preview. Raises RunError."""
    if kind_of(form.place) != HOSTS:
        return ""
    _request(form)
    named = ", ".join(host.destination for host in hosts(form))
    return (
        f"hosts: {named}\n"
        "# Enter asks each by ssh for its Python, torch, cores and GPUs, and shows the plan; nothing starts before it\n"
    )


def preview(form: LaunchForm, ask: bool = False) -> Preview:
    """What the form would do. Raises RunError, PresetError, PlanError.

    `ask`: hosts that the user named are asked what they are.
    """
    from . import checking

    open_ = "" if ask else asks(form)
    if open_:
        return Preview(text=open_, asks=open_)
    prepared = prepare(form)
    return Preview(
        text=prepared.text(), yaml=checking.task_text(prepared), findings=checking.findings(prepared, form)
    )


def prepare(form: LaunchForm) -> Prepared | Ordered | OnHosts:
    """The run that the form means. Raises RunError and PresetError."""
    request, kind = _request(form), kind_of(form.place)
    if kind == LOCAL:
        if form.gpus or form.cpus:
            raise RunError("GPUs and CPUs choose nodes of SkyPilot's: leave them out, or place: sky")
        if form.nodes not in ("", "1"):
            raise RunError(f"{form.nodes} nodes need a place: sky, one of SkyPilot's, or hosts A,B")
        return starting.prepare(form.preset, form.overrides, request)
    if kind == HOSTS:
        from . import hosting

        if form.gpus or form.cpus:
            raise RunError("GPUs and CPUs choose nodes of SkyPilot's: hosts have what they have")
        return hosting.prepare(form.preset, form.overrides, request, hosting.Wish(hosts=hosts(form)))
    from . import ordering

    return ordering.prepare(form.preset, form.overrides, request, ordering.Wish(resources=resources(form)))


def resources(form: LaunchForm) -> Resources:
    """What each node should be. Raises RunError."""
    place = form.place.strip()
    wish = Resources(infra=None if place == SKY else place, gpus=form.gpus or None, cpus=form.cpus or None)
    try:
        return skypilot.check(wish)
    except PlanError as error:
        text = str(error)
        for option, field in (("--on", "place"), ("--gpus", "GPUs"), ("--cpus", "CPUs")):
            text = text.replace(option, field)
        raise RunError(text) from None


async def candidates(form: LaunchForm) -> list[Candidate]:
    """The nodes that SkyPilot would take. Raises RunError; takes seconds."""
    from ..runners.hub.cloud import candidates_for

    nodes = form.nodes.rpartition(":")[2] or "1"
    if not nodes.isdecimal() or not int(nodes):
        raise RunError(f"nodes {form.nodes}: a number from 1 on")
    return await candidates_for(resources(form), int(nodes))


def hosts(form: LaunchForm) -> list[Named]:
    """Raises RunError."""
    from ..runners.hosts import names

    words = form.place.split(None, 1)
    if len(words) < 2:
        raise RunError("which hosts? type: hosts A,B,…")
    return names.from_words(words[1].replace(" ", ","))


def words(text: str, field: str) -> list[str]:
    """What was typed as the words that a shell makes of it. Raises RunError."""
    try:
        return shlex.split(text)
    except ValueError:
        raise RunError(f"{field}: a quote is open in {text}: close it") from None


def _request(form: LaunchForm) -> Request:
    """Raises RunError."""
    if not form.script.strip():
        raise RunError("no script yet: the path of the training script")
    nproc, nodes = form.nproc.strip(), form.nodes.strip()
    nccl = [f"DEBUG={form.nccl.strip()}"] if form.nccl.strip() else []
    args, env = words(form.args, "arguments"), words(form.env, "environment")
    return Request(
        script=form.script.strip(),
        args=tuple(args),
        name=form.name.strip() or None,
        nnodes=int(nodes) if nodes.isdecimal() else nodes or None,
        nproc_per_node=int(nproc) if nproc.isdecimal() else nproc or None,
        env=pairs(env, "environment"),
        nccl=nccl_pairs(nccl),
        nccl_presets=form.nccl_presets,
    )
