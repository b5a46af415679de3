"""`@for_each("line, rule", CASES)`: one test tries all cases and names every one that fails.

It takes what `pytest.mark.parametrize` takes, without the ten milliseconds that each case costs there.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

LONGEST_NAME = 200


def for_each(
    names: str | Sequence[str], cases: Iterable[Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test function with each case. Each has its own `tmp_path`, `monkeypatch` and captured output.

    All other fixtures are shared by the cases.
    """
    split = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [dict(zip(split, [case] if len(split) == 1 else case, strict=True)) for case in cases]

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            failures = Failures(len(table))
            for number, case in enumerate(table):
                with failures.of(case), own_fixtures(fixtures, number) as own:
                    test(**case, **own)
            failures.report()

        @functools.wraps(test)
        async def run_async(**fixtures: Any) -> None:
            failures = Failures(len(table))
            for number, case in enumerate(table):
                with failures.of(case), own_fixtures(fixtures, number) as own:
                    await test(**case, **own)
            failures.report()

        wrapper: Callable[..., Any] = run_async if inspect.iscoroutinefunction(test) else run
        signature = inspect.signature(test)
        kept = [each for name, each in signature.parameters.items() if name not in split]
        wrapper.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return wrapper

    return decorate


class Failures:
    """The exceptions of the cases that failed."""

    def __init__(self, cases: int) -> None:
        self.cases = cases
        self.exceptions: list[BaseException] = []
        self.names: list[str] = []
        self.skipped = 0

    @contextmanager
    def of(self, case: dict[str, Any]) -> Iterator[None]:
        try:
            yield
        except pytest.skip.Exception:
            self.skipped += 1
            if self.skipped == self.cases:
                raise
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - reported with the others
            name = ", ".join(f"{key}={value!r}"[:LONGEST_NAME] for key, value in case.items())
            error.add_note(f"in the case {name}")
            self.exceptions.append(error)
            self.names.append(name)

    def report(self) -> None:
        assert self.cases, "there are no cases"
        if self.exceptions:
            head = f"{len(self.exceptions)} of {self.cases} cases failed: "
            raise BaseExceptionGroup(head + " | ".join(self.names), self.exceptions)


@contextmanager
def own_fixtures(fixtures: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """The fixtures of one case."""
    own = dict(fixtures)
    folder = own.get("tmp_path")
    if isinstance(folder, Path):
        own["tmp_path"] = folder / str(number)
        own["tmp_path"].mkdir()
    with pytest.MonkeyPatch.context() as monkeypatch:
        if "monkeypatch" in own:
            own["monkeypatch"] = monkeypatch
        yield own
    for name in own.keys() & {"capfd", "capsys"}:
        own[name].readouterr()
