"""What SkyPilot is and offers here: version, infrastructures, accelerators, candidates for a task."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import sys
from typing import Any

from .serve import LineStream, SkyCall

SUPPORTED = (0, 14)
"""The release whose SDK this package was written against and tried with."""


def version(call: SkyCall) -> dict[str, Any]:
    """SkyPilot's version and whose Python this is, without importing SkyPilot."""
    if importlib.util.find_spec("sky") is None:
        return {"version": None, "python": sys.executable, "supported": False}
    try:
        release = importlib.metadata.version("skypilot")
    except importlib.metadata.PackageNotFoundError:
        try:
            release = importlib.metadata.version("skypilot-nightly")
        except importlib.metadata.PackageNotFoundError:
            release = ""
    numbers = tuple(int(part) for part in release.split(".")[:2] if part.isdigit())
    return {"version": release, "python": sys.executable, "supported": numbers == SUPPORTED}


def enabled(call: SkyCall) -> list[str]:
    """Infrastructures that SkyPilot may use, as it writes them: "aws", "slurm/lab"."""
    import sky
    from sky.client import sdk

    return [str(infra) for infra in sky.get(sdk.enabled_clouds(expand=True))]


def check(call: SkyCall, infra: list[str] | None = None) -> dict[str, Any]:
    """`sky check`: what is enabled, its text told on the way."""
    import sky
    from sky.client import sdk

    request = sdk.check(tuple(infra) if infra else None, verbose=False)
    call.began(request)
    answer = sky.stream_and_get(request, output_stream=LineStream(call))
    return {"enabled": {str(name): list(map(str, clouds)) for name, clouds in (answer or {}).items()}}


def accelerators(call: SkyCall, name: str | None = None) -> dict[str, list[int]]:
    """Names of accelerators on the enabled infrastructures and how many of each a node can have."""
    import sky
    from sky.client import sdk

    by_gpu: dict[str, set[int]] = {}
    places = enabled(call)
    if any(place.startswith("slurm") for place in places):
        for place in sky.get(sdk.realtime_slurm_gpu_availability(name_filter=name)):
            for gpu, counts, *_ in place[1] or ():
                by_gpu.setdefault(str(gpu), set()).update(int(count) for count in counts)
    clouds = sorted({place.partition("/")[0].lower() for place in places} - {"slurm"})
    if clouds:
        counts = sky.get(sdk.list_accelerator_counts(name_filter=name, clouds=clouds))
        for gpu, numbers in (counts or {}).items():
            by_gpu.setdefault(str(gpu), set()).update(int(count) for count in numbers if count >= 1)
    return {gpu: sorted(numbers) for gpu, numbers in sorted(by_gpu.items())}


def candidates(call: SkyCall, config: dict[str, Any]) -> dict[str, str]:
    """What the optimizer would take for a task: its table, as text, because SkyPilot gives nothing else."""
    import sky
    from sky.client import sdk

    dag = sky.Dag()
    dag.add(sky.Task.from_yaml_config(config))
    sdk.validate(dag)
    text = io.StringIO()
    request = sky.optimize(dag)
    call.began(request)
    sky.stream_and_get(request, output_stream=text)
    return {"text": text.getvalue()}


def read_task(call: SkyCall, text: str) -> list[Any]:
    """The documents of a task's YAML, as SkyPilot's own parser reads them."""
    import yaml

    return [document for document in yaml.safe_load_all(text) if document is not None]
