"""Pushes a run's metrics to an OpenTelemetry collector by OTLP, where the settings name one."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

from .. import clock
from ..notify.sending import NETWORK
from ..settings_file import Lookup, SecretError, settings_path
from ..telemetry import export_settings
from ..telemetry.export_settings import MISSING, OtlpExport
from ..telemetry.open_metrics import facts_of, samples_of
from ..telemetry.otlp_values import metrics_of, resource_of
from .metrics_writer import report
from .runner_process import ServedRun

WHOLE_S = 15.0
"""How long a push may take until its process is ended."""
END_S = 5.0
"""How long the end of a run waits for a collector that does not answer."""
MOST_WAIT_S = 60.0
"""Between pushes to a collector that takes none, unless the settings want more."""
MOST_QUIET_S = 3600.0
FAILED = "metrics-push"
_DIED = "the process that sends them ended: `pip install -U 'distui[otlp]'` where the extra is old"


class PushProblem:
    """What a finding says about pushes, ever more seldom where a collector comes and goes. Pure."""

    def __init__(self, quiet_s: float) -> None:
        """`quiet_s`: how long the first words stay at least."""
        self.words = ""
        self._quiet_s, self._until = quiet_s, 0.0

    def heard(self, why: str, now: float) -> bool:
        """Whether the words change with what came of a push."""
        if why == self.words or now < self._until:
            return False
        self.words, self._until = why, now + self._quiet_s
        self._quiet_s = min(2 * self._quiet_s, MOST_QUIET_S)
        return True


class PushProcess:
    """The process with the SDK, which has one push at a time; it begins with the first and is ended when it hangs."""

    def __init__(self, env: Mapping[str, str], host: str) -> None:
        self._env, self._host = env, host
        self._process: asyncio.subprocess.Process | None = None

    async def push(self, document: Mapping[str, Any]) -> str:
        """Why it has not arrived; "" where it has."""
        try:
            async with asyncio.timeout(WHOLE_S):
                return await self._ask(json.dumps(document).encode() + b"\n")
        except TimeoutError:
            await self.close()
            return f"{self._host} does not answer within {WHOLE_S:.0f} s"
        except (OSError, ValueError):
            await self.close()
            return _DIED

    async def _ask(self, line: bytes) -> str:
        if self._process is None:
            words = [sys.executable, "-P", "-m", "distui.runners.telemetry.otlp_process"]
            self._process = await asyncio.create_subprocess_exec(
                *words,
                env=self._env,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line)
        await process.stdin.drain()
        answer = json.loads(await process.stdout.readline())
        return str(answer["why"])

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def environment_of(environ: Mapping[str, str], lookup: Lookup) -> dict[str, str]:
    """What that process starts with: the network of the launch, and nothing that the user's own program exports by."""
    network = {name: value for name in NETWORK if (value := lookup(name))}
    return {name: value for name, value in {**environ, **network}.items() if not name.startswith("OTEL_")}


def pause_of(interval_s: float, failures: int) -> float:
    """Seconds until the next push, after so many that failed."""
    return min(interval_s * float(1 << min(failures, 10)), max(MOST_WAIT_S, interval_s))


class MetricsPush:
    """Pushes what is known every so often; the last push is the state in which the run ended."""

    def __init__(self, run: ServedRun, lookup: Lookup) -> None:
        """`lookup`: variables of the launch."""
        self._run, self._lookup = run, lookup
        self._pushing: asyncio.Task[str] | None = None

    async def run(self) -> None:
        """Push for ever; cancel to stop."""
        if self._run.state.phase.ended:
            return  # served to a reader, for whom nothing is sent
        settings = await asyncio.to_thread(export_settings.load)
        otlp = settings.otlp
        problem = PushProblem(3 * (otlp.interval_s if otlp else 1))
        self._report(problem, "; ".join(settings.otlp_problems))
        if otlp is None:
            return
        process = PushProcess(environment_of(os.environ, self._lookup), otlp.host)
        failures = 0
        try:
            while True:
                self._pushing = asyncio.create_task(self._push(otlp, process))
                why = await asyncio.shield(self._pushing)
                self._report(problem, why)
                failures = failures + 1 if why else 0
                await asyncio.sleep(pause_of(otlp.interval_s, failures))
        finally:
            await self._finish(otlp, process)

    async def _push(self, otlp: OtlpExport, process: PushProcess) -> str:
        """Why that was not possible; "" where it was."""
        try:
            headers = await asyncio.to_thread(
                export_settings.headers_of, otlp, self._lookup, settings_path().parent
            )
        except SecretError as error:
            return str(error)
        if not await asyncio.to_thread(_is_installed):
            return MISSING
        run = self._run
        state, name, now = run.state, run.record.run, clock.now()
        return await process.push(
            {
                "url": otlp.url,
                "host": otlp.host,
                "headers": headers,
                "at": now,
                "began": state.began or now,
                "attempt_began": state.attempts[-1].began if state.attempts else now,
                "resource": resource_of(facts_of(state, run.node), name, run.node, socket.gethostname()),
                "metrics": metrics_of(samples_of(state, name, run.node, now)),
            }
        )

    async def _finish(self, otlp: OtlpExport, process: PushProcess) -> None:
        """The last values of a run that has ended, after what is on its way."""
        if self._run.state.phase.ended:
            last = self._run.parts.once(FAILED, self._last(otlp, process))
            await asyncio.wait({last}, timeout=END_S)
            last.cancel()
        await process.close()

    async def _last(self, otlp: OtlpExport, process: PushProcess) -> None:
        if self._pushing is not None:
            await asyncio.wait({self._pushing})
        await self._push(otlp, process)

    def _report(self, problem: PushProblem, why: str) -> None:
        if problem.heard(why, clock.monotonic()):
            remedy = "see to the collector, or correct [export] of settings.toml for the next run; this one goes on"
            report(self._run, FAILED, why and f"metrics are not pushed: {why}", remedy)


def _is_installed() -> bool:
    """Also where it was installed since this process began."""
    importlib.invalidate_caches()
    return export_settings.is_installed()
