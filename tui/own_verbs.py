"""Run a verb of this distui in a separate process, because it changes directory and environment while it plans."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE
from typing import Any

from ..runners.run.errors import RunError

PREFIX = "distui: "


async def verb_document(*words: str) -> tuple[dict[str, Any], list[str]]:
    """Execute `distui WORDS…`; return its JSON object and its sentences on stderr. Raises RunError."""
    command = (sys.executable, "-P", "-m", __package__, *words)
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    except OSError as error:
        raise RunError(f"`distui {words[0]}` cannot be started: {error.strerror or error}") from None
    try:
        out, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
    lines = errors.decode("utf-8", "replace").splitlines()
    sentences = [line.removeprefix(PREFIX) for line in lines if line.strip()]
    if process.returncode:
        raise RunError(" ".join(sentences) or f"`distui {words[0]}` ended with {process.returncode}")
    document: dict[str, Any] = json.loads(out)
    return document, sentences
