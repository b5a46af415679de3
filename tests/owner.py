"""The owner of the background tasks of a part that a test builds by itself."""

from __future__ import annotations

from distui.runners.run.parts import Parts


def owner() -> Parts:
    """An owner that raises what a part has raised: pytest shows it."""

    def report(name: str, error: BaseException, follows: str) -> None:
        raise error

    return Parts(report)
