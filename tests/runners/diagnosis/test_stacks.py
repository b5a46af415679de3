"""Stacks of many ranks as one view: which thread is the main one, which stacks are equal, who stands out."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from pathlib import Path

from distui.runners.diagnosis import stack_text

TRAIN = '  File "/srv/job/train.py", line {line} in {name}\n'
MAIN = '  File "/srv/job/train.py", line 90 in <module>\n'


def _text(line: int = 50, name: str = "step", top: str = "/usr/lib/py/threading.py") -> str:
    return (
        f'Thread 0x00007f01 (most recent call first):\n  File "{top}", line 3 in wait\n\n'
        "Current thread 0x00007f02 (most recent call first):\n"
        '  File "/x/inrank/hook.py", line 200 in stacks\n\n'
        "Thread 0x00007f03 (most recent call first):\n" + TRAIN.format(line=line, name=name) + MAIN
    )


def test_equal_stacks_are_one_group_and_the_larger_comes_first() -> None:
    texts = {rank: _text() for rank in range(64)}
    texts[5] = texts[9] = _text(33, "load")
    first, second = stack_text.merged_stacks(texts)
    assert len(first.ranks) == 62
    assert first.frames[0] == "/srv/job/train.py:50 step"
    assert second.ranks == (5, 9)
    assert second.frames == ("/srv/job/train.py:33 load", "/srv/job/train.py:90 <module>")
    assert (first.shared, second.shared) == (2, 1)


def test_only_the_main_thread_decides() -> None:
    assert len(stack_text.merged_stacks({0: _text(), 1: _text(top="/usr/lib/py/socket.py")})) == 1


def test_the_same_file_under_another_home_is_the_same_place() -> None:
    texts = {
        0: _text(),
        1: _text().replace("/srv/job", "/data/b/job"),
        2: _text().replace("job/train", "a/train"),
    }
    groups = stack_text.merged_stacks(texts)
    assert [group.ranks for group in groups] == [(0, 1), (2,)]
    assert groups[0].frames[0].startswith("/srv/job/")


def test_groups_of_one_size_stand_by_their_ranks() -> None:
    groups = stack_text.merged_stacks({3: _text(1), 1: _text(2), 2: _text(1), 0: _text(2)})
    assert [group.ranks for group in groups] == [(0, 1), (2, 3)]


def test_a_text_without_a_stack_is_a_group_without_frames() -> None:
    groups = stack_text.merged_stacks({0: "", 1: "what is this", 2: _text()})
    assert [(group.ranks, bool(group.frames)) for group in groups] == [((0, 1), False), ((2,), True)]
    assert stack_text.merged_stacks({}) == []


def test_of_a_hundred_threads_the_one_that_the_signal_interrupted_is_the_main_one() -> None:
    many = "".join(
        f"Thread 0x{number:x} (most recent call first):\n{TRAIN.format(line=number, name='worker')}\n"
        for number in range(99)
    )
    main = "Current thread 0x1000 (most recent call first):\n" + TRAIN.format(line=50, name="step") + MAIN
    assert stack_text.main_frames(main + "\n" + many + "...\n")[0].endswith("train.py:50 step")
    by_hook = (
        'Current thread 0x1000 (most recent call first):\n  File "/x/inrank/hook.py", line 2 in stacks\n\n'
    )
    assert stack_text.main_frames(by_hook + many + "...\n") == ()


def test_names_of_threads_and_lines_that_are_not_known() -> None:
    text = 'Thread 0x00007f01 [pt_autograd_0] (most recent call first):\n  File "/a b/c.py", line ??? in <lambda>\n'
    (thread,) = stack_text.threads(text)
    assert thread == stack_text.Thread(
        "Thread 0x00007f01 [pt_autograd_0]", False, ("/a b/c.py:??? <lambda>",)
    )


def test_what_this_python_writes_of_itself(tmp_path: Path) -> None:
    path, go, ready = tmp_path / "stacks", threading.Event(), threading.Event()

    def write() -> None:
        with path.open("w") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        ready.set()
        go.wait()

    thread = threading.Thread(target=write)
    thread.start()
    ready.wait(10)
    go.set()
    thread.join()
    found = stack_text.threads(path.read_text())
    assert [one.current for one in found].count(True) == 1
    main = stack_text.main_frames(path.read_text())
    assert any(frame.endswith(" test_what_this_python_writes_of_itself") for frame in main)
    assert not any(frame.endswith(" write") for frame in main)


def test_a_signal_finds_the_main_thread_among_younger_ones(tmp_path: Path) -> None:
    stop, path = threading.Event(), tmp_path / "stacks"

    def send() -> None:
        os.kill(os.getpid(), signal.SIGUSR2)

    threads = [threading.Thread(target=stop.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    with path.open("w") as file:
        faulthandler.register(signal.SIGUSR2, file, all_threads=True)
        send()
        faulthandler.unregister(signal.SIGUSR2)
    stop.set()
    for thread in threads:
        thread.join()
    frames = stack_text.main_frames(path.read_text())
    assert [frame.rsplit(" ", 1)[1] for frame in frames[:2]] == [
        "send",
        "test_a_signal_finds_the_main_thread_among_younger_ones",
    ]


def test_frames_of_the_import_system_are_left_out() -> None:
    frozen = "".join(
        f'  File "<frozen importlib._bootstrap{end}>", line {line} in {name}\n'
        for end, line, name in (
            ("_external", 1130, "get_data"),
            ("", 690, "_load_unlocked"),
            ("", 1147, "_find"),
        )
    )
    inner = "Thread 0x00007f03 (most recent call first):\n" + frozen + TRAIN.format(line=3, name="<module>")
    whole = inner + frozen + MAIN
    (group,) = stack_text.merged_stacks({0: whole, 1: whole})
    assert group.frames == (
        "<frozen importlib._bootstrap_external>:1130 get_data",
        "/srv/job/train.py:3 <module>",
        "/srv/job/train.py:90 <module>",
    )
    assert len(stack_text.main_frames(whole)) == 8, "each rank's own text has them all"
