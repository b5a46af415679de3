"""A table in one test: what fails is named, and cases do not disturb each other."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from each import for_each


def test_all_cases_that_fail_are_named() -> None:
    tried = []

    @for_each(("one", "other"), [(1, 1), (1, 2), (3, 3), (4, 5)])
    def equal(one: int, other: int) -> None:
        tried.append(one)
        assert one == other

    with pytest.raises(BaseExceptionGroup, match=r"2 of 4 cases failed: one=1, other=2 \| one=4, other=5"):
        equal()
    assert tried == [1, 1, 3, 4]


def test_coroutines_are_awaited_and_products_tried() -> None:
    tried = []

    @for_each("one", "ab")
    @for_each("other", [1, 2])
    async def note(one: str, other: int) -> None:
        await asyncio.sleep(0)
        tried.append((one, other))

    asyncio.run(note())
    assert tried == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


@for_each("text", ["a", "b"])
def test_each_case_has_a_folder_and_an_environment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert list(tmp_path.iterdir()) == []
    assert "TEST_EACH" not in os.environ
    assert capsys.readouterr().out == ""
    (tmp_path / "x").touch()
    monkeypatch.setenv("TEST_EACH", text)
    print(text)


def test_only_where_all_are_skipped_the_test_is() -> None:
    @for_each("left_out", [True, False])
    def some(left_out: bool) -> None:
        if left_out:
            pytest.skip("not here")

    @for_each("left_out", [True, True])
    def all_of_them(left_out: bool) -> None:
        some.__wrapped__(left_out)  # type: ignore[attr-defined]

    some()
    with pytest.raises(pytest.skip.Exception):
        all_of_them()


def test_no_cases_are_a_failure() -> None:
    @for_each("one", [])
    def nothing(one: int) -> None:
        raise AssertionError

    with pytest.raises(AssertionError, match="there are no cases"):
        nothing()
