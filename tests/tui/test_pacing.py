"""Paint no faster than the terminal takes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from distui.tui.paint import FEWEST, MOST, PATIENCE_S, Pacer


@dataclass(eq=False)
class Canvas:
    painted: list[list[int]] = field(default_factory=list)

    def paint_rows(self, rows: list[int]) -> None:
        self.painted.append(rows)


class Bench:
    """A pacer with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked = 0
        self.pacer = Pacer(self._ask, lambda: self.now)
        self.pacer.active = True

    def _ask(self) -> None:
        self.asked += 1

    def answer(self, after: float) -> None:
        self.now += after
        self.pacer.answered()


def test_without_a_terminal_of_our_own_rows_are_painted_at_once() -> None:
    bench, canvas = Bench(), Canvas()
    bench.pacer.active = False
    bench.pacer.add(canvas, [1, 2])
    bench.pacer.add(canvas, [3])
    assert canvas.painted == [[1, 2], [3]]
    assert bench.asked == 0


def test_only_one_batch_is_on_its_way_and_changes_meanwhile_are_one() -> None:
    bench, canvas = Bench(), Canvas()
    bench.pacer.add(canvas, [1])
    for _ in range(5):
        bench.pacer.add(canvas, [2, 3])
    assert canvas.painted == [[1]]
    bench.answer(0.01)
    assert canvas.painted == [[1], [2, 3]]
    assert bench.asked == 2


def test_a_slow_answer_halves_the_batch_and_a_fast_one_doubles_it() -> None:
    bench, canvas = Bench(), Canvas()
    sizes = []
    for _ in range(8):
        bench.pacer.add(canvas, list(range(100)))
        bench.answer(0.5)
        sizes.append(bench.pacer.budget)
    assert sizes[:3] == [32, 16, 8]
    assert sizes[-1] == FEWEST
    for _ in range(8):
        bench.answer(0.01)
        bench.pacer.add(canvas, list(range(100)))
    assert bench.pacer.budget == MOST


def test_no_row_is_forgotten() -> None:
    bench, one, two = Bench(), Canvas(), Canvas()
    bench.pacer.budget = 4
    bench.pacer.add(one, list(range(10)))
    bench.pacer.add(two, list(range(10)))
    while bench.pacer.busy:
        bench.answer(0.2)
    assert sorted(row for batch in one.painted for row in batch) == list(range(10))
    assert sorted(row for batch in two.painted for row in batch) == list(range(10))


def test_a_terminal_that_never_answers_is_not_waited_for() -> None:
    bench, canvas = Bench(), Canvas()
    bench.pacer.add(canvas, [1])
    bench.pacer.add(canvas, [2])
    bench.now += PATIENCE_S + 1
    bench.pacer.pump()
    assert canvas.painted == [[1], [2]]
    assert not bench.pacer.active
    bench.pacer.add(canvas, [3])
    assert canvas.painted[-1] == [3]


def test_what_is_painted_together_is_one_batch_and_one_question() -> None:
    bench, one, two = Bench(), Canvas(), Canvas()
    with bench.pacer.together():
        bench.pacer.add(one, [1])
        with bench.pacer.together():
            bench.pacer.add(two, [2])
        bench.pacer.add(one, [3])
        bench.pacer.sent()
        assert one.painted == two.painted == []
        assert bench.asked == 0
    assert one.painted == [[1, 3]]
    assert two.painted == [[2]]
    assert bench.asked == 1
