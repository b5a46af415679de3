"""Push a run's metrics to an OpenTelemetry collector with OTLP, if the settings name one."""

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

from ..notify.sending import NETWORK
from ..run import clock
from ..run.packages import install_extra
from ..run.settings_file import Lookup, SecretError, settings_path
from ..telemetry import export_settings
from ..telemetry.export_settings import OtlpExport, not_installed
from ..telemetry.exported_samples import facts_of, samples_of
from ..telemetry.otlp_values import metrics_of, resource_of
from .metrics_writer import report
from .runner_process import ServedRun

WHOLE_S = 15.0
"""Seconds for a push before its process is killed."""
END_S = 5.0
"""Seconds that the end of a run waits for a collector without an answer."""
MOST_WAIT_S = 60.0
"""Most seconds between pushes to a failing collector, unless the settings have more."""
MOST_QUIET_S = 3600.0
FAILED = "metrics-push"


class PushProblem:
    """The text of a finding on pushes. It changes at growing intervals if a collector comes and goes. Pure."""

    def __init__(self, quiet_s: float) -> None:
        """`quiet_s`: shortest time before the first change."""
        self.words = ""
        self._quiet_s, self._until = quiet_s, 0.0

    def heard(self, why: str, now: float) -> bool:
        """Return True if the result of a push changes the text."""
        if why == self.words or now < self._until:
            return False
        self.words, self._until = why, now + self._quiet_s
        self._quiet_s = min(2 * self._quiet_s, MOST_QUIET_S)
        return True


class PushProcess:
    """The process that posts. It starts with the first push, handles one at a time, and is killed if it hangs."""

    def __init__(self, env: Mapping[str, str], host: str) -> None:
        self._env, self._host = env, host
        self._process: asyncio.subprocess.Process | None = None

    async def push(self, document: Mapping[str, Any]) -> str:
        """Push a document. Return the reason for a failure, or ""."""
        try:
            async with asyncio.timeout(WHOLE_S):
                return await self._ask(json.dumps(document).encode() + b"\n")
        except TimeoutError:
            await self.close()
            return f"{self._host} does not answer within {WHOLE_S:.0f} s"
        except (OSError, ValueError):
            await self.close()
            return f"the process that sends them ended: {install_extra('otlp')} if the package is old"

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
    """Return the environment of that process, with the launch's network variables and without OTEL_ variables."""
    network = {name: value for name in NETWORK if (value := lookup(name))}
    return {name: value for name, value in {**environ, **network}.items() if not name.startswith("OTEL_")}


def pause_of(interval_s: float, failures: int) -> float:
    """Return the seconds until the next push after a number of failures."""
    return min(interval_s * float(1 << min(failures, 10)), max(MOST_WAIT_S, interval_s))


class MetricsPush:
    """Pushes the metrics periodically. The last push has the state at the run's end."""

    def __init__(self, run: ServedRun, lookup: Lookup) -> None:
        """`lookup`: variables of the launch."""
        self._run, self._lookup = run, lookup
        self._pushing: asyncio.Task[str] | None = None

    async def run(self) -> None:
        """Push until cancelled."""
        if self._run.state.phase.ended:
            return  # served for a reader: send nothing
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
        """Push once. Return the reason for a failure, or ""."""
        try:
            headers = await asyncio.to_thread(
                export_settings.headers_of, otlp, self._lookup, settings_path().parent
            )
        except SecretError as error:
            return str(error)
        if not await asyncio.to_thread(_is_installed):
            return not_installed()
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
        """Push the last values of an ended run, after the current push."""
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
    """Return True if the extra is installed, even if that happened after the start of this process."""
    importlib.invalidate_caches()
    return export_settings.is_installed()
