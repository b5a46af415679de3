"""Write no faster than the terminal takes it."""

from __future__ import annotations

from distui.tui.pacing import ASK, DEAF_S, FEWEST, FIRST, GREETING_S, MOST, Pacer


class Bench:
    """A pacer with a clock that the test moves, and text that waits to be written."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due = ""
        self.written: list[str] = []
        self.pacer = Pacer(self._take, self.written.append, lambda: self.now)
        self.pacer.greet()

    def _take(self, budget: int) -> str:
        text, self.due = self.due[:budget], self.due[budget:]
        return text

    def add(self, text: str) -> None:
        self.due += text
        self.pacer.pump()

    def answer(self, after: float) -> None:
        self.now += after
        self.pacer.answered()

    @property
    def asked(self) -> int:
        return "".join(self.written).count(ASK)

    @property
    def text(self) -> str:
        return "".join(self.written).replace(ASK, "")


def test_small_batches_say_nothing_of_how_fast_a_link_is() -> None:
    bench = Bench()
    bench.answer(0.01)
    for _ in range(12):
        bench.add("x" * 200)
        bench.answer(0.01)
    assert bench.pacer.budget == FIRST


def test_without_a_terminal_of_our_own_nothing_is_written() -> None:
    bench = Bench()
    bench.pacer.active = False
    bench.add("abc")
    assert bench.written == [ASK]


def test_only_one_batch_is_on_its_way_and_changes_meanwhile_are_one() -> None:
    bench = Bench()
    bench.answer(0.01)
    for text in "abcd":
        bench.add(text)
    assert bench.written == [ASK, "a" + ASK]
    bench.answer(0.01)
    assert bench.written[2:] == ["bcd" + ASK]
    assert bench.pacer.busy
    bench.answer(0.01)
    assert not bench.pacer.busy


def test_a_slow_answer_makes_the_batch_smaller_and_a_fast_one_doubles_it() -> None:
    bench = Bench()
    bench.answer(0.01)
    sizes = []
    for _ in range(8):
        bench.add("x" * MOST)
        bench.answer(0.5)
        sizes.append(bench.pacer.budget)
        bench.due = ""
    assert sizes[0] <= FIRST
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == FEWEST
    for _ in range(12):
        bench.add("x" * MOST)
        bench.answer(0.01)
        bench.due = ""
    assert bench.pacer.budget == MOST


def test_a_far_terminal_is_no_slow_one() -> None:
    bench = Bench()
    bench.answer(0.4)
    for _ in range(8):
        bench.add("x" * MOST)
        bench.answer(0.42)
        bench.due = ""
    assert bench.pacer.budget == MOST


def test_nothing_is_forgotten() -> None:
    bench = Bench()
    wanted = "".join(map(str, range(3000)))
    bench.add(wanted)
    while bench.pacer.busy:
        bench.answer(0.6)
    assert bench.text == wanted


def test_a_terminal_that_has_never_answered_gets_everything_until_it_does() -> None:
    bench = Bench()
    bench.add("")
    bench.add("a")
    bench.add("-")
    assert bench.text == "a", "the first batch of all waits for no answer"
    bench.now += GREETING_S
    bench.add("b")
    assert bench.text == "a-b"
    bench.add("c")
    assert bench.text == "a-bc"
    assert bench.asked == 2, "the question is not asked with each batch"
    assert not bench.pacer.busy
    bench.answer(1.0)
    bench.add("d")
    bench.add("e")
    assert bench.text == "a-bcd", "it is paced again"
    bench.answer(0.1)
    assert bench.text == "a-bcde"


def test_a_terminal_that_stopped_to_answer_is_hardly_written_to_and_paced_as_before_when_it_answers() -> (
    None
):
    bench = Bench()
    bench.answer(0.01)
    for _ in range(60):
        bench.due = "x" * 50_000
        bench.now += 1.0
        bench.pacer.pump()
    assert bench.asked <= 5
    assert len(bench.text) <= FIRST * 2 + 4 * FEWEST
    bench.answer(0.1)
    assert bench.pacer.active
    assert not bench.pacer.mute
    for _ in range(12):
        bench.answer(0.01)
        bench.add("x" * MOST)
    assert bench.pacer.budget == MOST


def test_a_key_shows_that_an_answer_was_lost() -> None:
    bench = Bench()
    bench.answer(0.01)
    bench.add("a")
    bench.add("b")
    bench.pacer.typed()
    assert bench.text == "a"
    bench.now += DEAF_S
    bench.pacer.typed()
    assert bench.text == "ab"


def test_output_that_is_held_back_comes_with_the_release() -> None:
    bench = Bench()
    bench.answer(0.01)
    bench.pacer.hold(True)
    bench.add("a")
    bench.add("b")
    assert bench.text == ""
    bench.pacer.hold(False)
    assert bench.text == "ab"


def test_what_is_painted_together_is_one_batch_and_one_question() -> None:
    bench = Bench()
    bench.answer(0.01)
    with bench.pacer.together():
        bench.add("a")
        with bench.pacer.together():
            bench.add("b")
        bench.add("c")
        assert bench.text == ""
    assert bench.written[1:] == ["abc" + ASK]
