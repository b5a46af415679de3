"""A SkyPilot task that the user wrote, read from its file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ..presets.launchers import skypilot
from ..runners.errors import RunError
from ..runners.hub.causes import shortened
from ..runners.hub.cloud import Sky, SkyError

MOST_BYTES = 1 << 20
NO_YAML = ("ParserError", "ScannerError", "ComposerError", "ConstructorError", "ReaderError")
"""What PyYAML raises."""


def read(file: str) -> dict[str, Any]:
    """The task. Raises RunError and PlanError."""
    return _from_here(skypilot.own_task(asyncio.run(_documents(_text(file), file)), file))


def _from_here(config: dict[str, Any]) -> dict[str, Any]:
    """A task whose local paths begin here, as SkyPilot takes them: the hub may ask for it from elsewhere."""
    if isinstance(config.get("workdir"), str):
        config["workdir"] = _absolute(config["workdir"])
    mounts = config.get("file_mounts") or {}
    config["file_mounts"] = {
        there: _absolute(here) if isinstance(here, str) else here for there, here in mounts.items()
    }
    return config


def _absolute(path: str) -> str:
    """A local relative path from the root on; anything else as it is."""
    if "://" in path or path.startswith(("/", "~", "$")):
        return path
    return str(Path.cwd() / path)


def _text(file: str) -> str:
    """A user's file. Raises RunError."""
    try:
        with Path(file).open(encoding="utf-8") as opened:
            return opened.read(MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"--task {file}: it cannot be read ({error})") from None


async def _documents(text: str, file: str) -> list[Any]:
    """The documents of a YAML text, as SkyPilot reads them. Raises RunError."""
    sky = Sky()
    try:
        await sky.start()
        return list(await sky.call("read_task", text=text))
    except SkyError as error:
        if error.kind in NO_YAML:
            raise RunError(f"--task {file}: it is no YAML ({shortened(error.detail)})") from None
        raise
    finally:
        await sky.close()
