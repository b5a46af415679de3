"""Every field of a preset says what it is for."""

from __future__ import annotations

from each import for_each

from distui.presets import model
from distui.presets.model import help_of


@for_each("path", [*model.fields(), *model.tables()])
def test_every_field_and_table_has_a_text(path: str) -> None:
    text = help_of(path)
    assert len(text) > 5
    assert "\n" not in text
    assert "  " not in text


def test_no_two_fields_of_a_table_share_a_text() -> None:
    """A field without a docstring of its own would get that of its table."""
    texts = [help_of(path) for path in model.fields() if "." in path]
    assert not {help_of(table) for table in model.tables()} & set(texts)
    assert len(set(texts)) == len(texts)


def test_the_text_is_the_one_that_stands_under_the_field() -> None:
    assert (
        help_of("restart.limit")
        == "Failures in a row after which the ranks restart; one more ends the run. 0: never restart."
    )
    assert help_of("mesh.cp").startswith("Ranks that share one sequence")
    assert help_of("nccl.NCCL_ALGO") == help_of("nccl")
    assert help_of("no.such") == ""
