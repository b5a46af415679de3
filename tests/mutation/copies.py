"""A copy of the tree that can be changed and tested."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .catalogue import Mutant, Stage, changed

REPOSITORY = Path(__file__).resolve().parents[2]
MARKER = "MUTATION_COPY"
"""Variable in the environment of all that is started in the copy; its value is the copy's folder."""
NO_TESTS = 5
"""Exit code of pytest where the arguments select none of the tests."""
LONGEST_S = 7200.0
"""Seconds after which a run is given up for which no other limit is known."""


@dataclass(frozen=True)
class Run:
    """One run of pytest."""

    passed: bool
    failures: tuple[str, ...]
    seconds: float
    timed_out: bool = False
    output: str = field(default="", repr=False)


class Copy:
    """A copy of a commit with an environment of its own."""

    def __init__(self, folder: Path, commit: str) -> None:
        """Make the copy, or take the one that is in `folder`. Raises SystemExit."""
        self.folder = folder
        self.python = folder / ".venv" / "bin" / "python"
        self.commit = output_of("git", "-C", str(REPOSITORY), "rev-parse", "--short=8", commit).strip()
        self._stamp = int(time.time())
        self._checked = folder / ".mutation-checked.json"
        made = folder / ".mutation-commit"
        if not made.exists():
            self._extract()
            self._make_environment()
            made.write_text(self.commit)
        elif made.read_text() != self.commit:
            raise SystemExit(f"{folder} is a copy of {made.read_text()}, not of {self.commit}: remove it")
        self._verify()

    def _extract(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        words = ["git", "-C", str(REPOSITORY), "archive", self.commit]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as archive:
            subprocess.run(["tar", "-x", "-C", str(self.folder)], stdin=archive.stdout, check=True)
        if archive.returncode:
            raise SystemExit(f"git archive {self.commit} failed")

    def _make_environment(self) -> None:
        """A virtual environment with distui of the copy, the packages of this environment, and its commands."""
        own = self.folder / ".venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(own)], check=True)
        packages = Path(sysconfig.get_path("purelib"))
        # A path file lists folders. It does not execute the path files in them, one of which names another distui.
        place = own / packages.relative_to(sys.prefix) / "copy.pth"
        place.write_text(f"{self.folder / '.editable'}\n{packages}\n")
        shebang = f"#!{sys.prefix}/bin/python".encode()
        for command in sorted(Path(sys.prefix, "bin").iterdir()):
            place = self.python.with_name(command.name)
            if place.exists() or command.is_dir():
                continue
            data = command.read_bytes()
            if data.startswith(shebang):
                place.write_bytes(data.replace(sys.prefix.encode(), str(own).encode(), 1))
                place.chmod(0o755)
            else:
                place.symlink_to(command)

    def _verify(self) -> None:
        """Raises SystemExit unless module and command of the copy are used."""
        code = "import distui.presets, distui.runners, distui.tui; print(distui.runners.__file__)"
        seen = output_of(str(self.python), "-c", code, env=self._environment()).strip()
        if Path(seen) != self.folder / ".editable/distui/runners/__init__.py":
            raise SystemExit(f"the copy imports {seen}, not its own distui")
        first = self.python.with_name("distui").read_text().partition("\n")[0]
        if first != f"#!{self.python}":
            raise SystemExit(f"the copy's command begins with {first}")
        print(f"copy of {self.commit} in {self.folder}: distui.runners is {seen}", flush=True)

    def _environment(self) -> dict[str, str]:
        env = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        return {**env, MARKER: str(self.folder)}

    @contextlib.contextmanager
    def mutated(self, mutants: Sequence[Mutant]) -> Iterator[None]:
        """The copy with mistakes in it."""
        before: dict[Path, str] = {}
        try:
            for mutant in mutants:
                path = self.folder / mutant.file
                text = path.read_text()
                before.setdefault(path, text)
                self._write(path, changed(mutant, text))
            yield
        finally:
            for path, text in before.items():
                self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        """With a new time of change each: by that and the size Python knows whether its compiled file is stale."""
        path.write_text(text)
        self._stamp += 1
        os.utime(path, (self._stamp, self._stamp))

    def pytest(self, stage: Stage, limit_s: float, *options: str) -> Run:
        """Run tests; a run that takes longer than `limit_s` is killed. No tests at all count as passed."""
        words = [str(self.python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        words += [*stage.args, *options, *stage.tests]
        began, timed_out = time.monotonic(), False
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            process = subprocess.Popen(
                words,
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                timed_out = True
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                self._end_what_is_left()
            output.seek(0)
            text = output.read()
        code, seconds = process.returncode, time.monotonic() - began
        if not timed_out and code not in (0, 1, 2, NO_TESTS):
            raise SystemExit(f"pytest ended with {code}:\n{text[-4000:]}")
        return Run(code in (0, NO_TESTS), failures_in(text), seconds, timed_out, text)

    def _end_what_is_left(self) -> None:
        """End processes that tests of this copy started and left behind."""
        wanted = f"{MARKER}={self.folder}".encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)

    def present(self, stage: Stage) -> Stage:
        """Without the tests that this commit does not have: it may be older or newer than mutants.toml."""
        tests = [path for path in stage.tests if (self.folder / path.partition("::")[0]).exists()]
        return replace(stage, tests=tuple(tests))

    def check(self, stage: Stage, excluded: Sequence[str]) -> float:
        """Seconds that the unchanged copy takes for tests, all of which it passes. Raises SystemExit."""
        known: dict[str, float] = json.loads(self._checked.read_text()) if self._checked.exists() else {}
        key = " ".join((*stage.args, *stage.tests, *deselected(excluded)))
        if key not in known:
            run = self.pytest(stage, LONGEST_S, *deselected(excluded))
            failures = run.failures
            if not run.passed and not failures:
                raise SystemExit(f"the unchanged copy cannot be tested:\n{run.output[-4000:]}")
            if failures:  # a busy machine is no defect
                failures = self.pytest(replace(stage, tests=failures), LONGEST_S).failures
            if failures:
                raise SystemExit(
                    f"the unchanged copy fails {', '.join(failures)}: exclude them by --deselect"
                )
            known[key] = run.seconds
            self._checked.write_text(json.dumps(known, indent=1))
            print(f"unchanged: {' '.join(stage.tests[:2])} … pass in {run.seconds:.0f} s", flush=True)
        return known[key]


def output_of(*words: str, env: Mapping[str, str] | None = None) -> str:
    """What a command prints."""
    return subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout


def deselected(tests: Sequence[str]) -> list[str]:
    """Arguments of pytest that leave tests out."""
    return [word for test in tests for word in ("--deselect", test)]


def failures_in(output: str) -> tuple[str, ...]:
    """Tests that failed, by the summary of pytest."""
    failures = []
    for line in output.splitlines():
        kind, _, rest = line.partition(" ")
        if kind in ("FAILED", "ERROR") and rest.startswith("tests/"):
            failures.append(rest.partition(" - ")[0].strip())
    return tuple(dict.fromkeys(failures))
