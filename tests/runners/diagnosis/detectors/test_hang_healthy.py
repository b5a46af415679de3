"""Jobs that look idle, stuck or slow and are not: no alarm."""

from __future__ import annotations

from each import for_each

from distui.runners.run.pulse import Pulse, Site

from .hang_rig import (
    IN_ALL_REDUCE,
    IN_LOADER,
    IN_RECV,
    IN_SAVE,
    LOAD,
    NOW,
    PYTHON,
    STEP,
    TORCH,
    Made,
    call,
    quiet,
    series,
)

VALIDATE = (Site("/job/train.py", 91, "evaluate"), Site("/job/train.py", 88, "validate"), *STEP[1:])
LONG = call(42, "barrier", age=120)


def beside(*pulses: Pulse) -> Made:
    """Three ranks wait for two minutes; rank 0 does something else."""
    return Made().wait([1, 2, 3], LONG).add(pulses)


def alternating(*stacks: tuple[Site, ...], share: float = 0.9, **more: object) -> tuple[Pulse, ...]:
    """A rank whose looks find it in turn at different places."""
    each = [series(0, stack, share=share, enqueued=41, **more) for stack in stacks]  # type: ignore[arg-type]
    return tuple(each[number % len(each)][number] for number in range(8))


def test_long_validation_on_one_rank() -> None:
    assert quiet(beside(*series(0, VALIDATE, share=0.9, sites=6, enqueued=41)).hang())


def test_validation_that_is_mostly_one_call() -> None:
    other = (Site("/job/train.py", 92, "evaluate"), *VALIDATE[1:])
    assert quiet(beside(*alternating(VALIDATE, other, sites=2)).hang())


def test_one_long_call_of_torch() -> None:
    matmul = (Site(TORCH + "nn/functional.py", 2900, "linear"), *VALIDATE)
    assert quiet(beside(*series(0, matmul, share=1.0, enqueued=41, state="R")).hang())


def test_one_long_call_that_uses_several_threads() -> None:
    assert quiet(beside(*series(0, VALIDATE, share=1.0, others=3.0, enqueued=41, state="R")).hang())


def test_a_loop_on_the_gpu() -> None:
    """`loss.item()` spins on the processor while the GPU computes."""
    made = Made().wait([1, 2, 3], LONG).add(series(0, VALIDATE, share=1.0, enqueued=41, state="R"))
    assert quiet(made.gpu(0, 97.0, 500.0).hang())


def test_a_rank_that_makes_steps() -> None:
    pulses = series(0, LOAD, enqueued=41)
    counted = tuple(
        type(one)(**{name: getattr(one, name) for name in one.__struct_fields__} | {"step": 12 + number})
        for number, one in enumerate(pulses)
    )
    assert quiet(beside(*counted).hang())


@for_each("stack", [IN_SAVE, LOAD])
def test_a_checkpoint_that_is_being_written(stack: tuple[Site, ...]) -> None:
    assert quiet(beside(*series(0, stack, share=0.001, bytes_s=1 << 20, enqueued=41, state="D")).hang())


def test_a_checkpoint_that_the_disk_takes_its_time_with() -> None:
    """fsync: no bytes, no processor, in the kernel's uninterruptible sleep."""
    made = Made().wait([1, 2, 3], call(42, age=15)).add(series(0, IN_SAVE, enqueued=41, state="D"))
    assert quiet(made.hang())


def test_a_short_sleep_in_a_checkpoint() -> None:
    slept = series(0, IN_SAVE, enqueued=41, looks=4)  # 6 s
    assert quiet(Made().wait([1, 2, 3], call(42, age=9)).add(slept).hang())


def test_a_compiler_that_runs_elsewhere() -> None:
    compiling = (
        Site(PYTHON + "threading.py", 327, "wait"),
        Site(PYTHON + "concurrent/futures/_base.py", 451, "result"),
        Site(TORCH + "_inductor/async_compile.py", 500, "wait"),
        *STEP,
    )
    assert quiet(beside(*series(0, compiling, enqueued=41)).hang())


def test_children_that_work() -> None:
    tar = (Site(PYTHON + "subprocess.py", 2004, "_try_wait"), *LOAD)
    assert quiet(Made().wait([1, 2, 3], LONG).add(series(0, tar, enqueued=41)).uses(0, 140.0).hang())


def test_threads_that_work() -> None:
    pool = (Site(PYTHON + "threading.py", 327, "wait"), *LOAD)
    assert quiet(beside(*series(0, pool, others=0.8, enqueued=41)).hang())


def test_a_data_loader_whose_workers_work() -> None:
    made = Made().wait([1, 2, 3], call(42, age=40)).add(series(0, IN_LOADER, enqueued=41))
    assert quiet(made.uses(0, 180.0).hang())


def test_everybody_sleeps() -> None:
    assert Made().add(*(series(rank, LOAD) for rank in range(4))).hang() == []


def test_one_has_slept_a_little_less() -> None:
    made = Made().wait([0], call(42, age=5)).add(*(series(rank, LOAD, enqueued=41) for rank in (1, 2, 3)))
    assert made.hang() == []


def test_long_steps_of_everybody() -> None:
    assert Made().add(*(series(rank, VALIDATE, share=0.9, sites=4) for rank in range(4))).hang() == []


def test_long_steps_and_an_impatient_rank() -> None:
    """Steps of 11 s, of unequal length: who is done waits for 9 s."""
    busy = [series(rank, VALIDATE, share=0.9, sites=4, enqueued=41) for rank in (1, 2, 3)]
    assert Made().wait([0], call(42, age=9)).add(*busy).hang() == []


def test_a_wait_of_a_few_long_steps() -> None:
    """Steps of 3 s: a wait counts after five of them."""

    def told(age: float) -> bool:
        steps = tuple(call(seq, age=age + 3.0 * (42 - seq), done=True) for seq in range(37, 42))
        made = Made().wait([0, 1, 2], call(42, age=age), recent=steps)
        return bool(made.add(series(3, LOAD, enqueued=41)).hang())

    assert not told(12.0)
    assert told(16.0)


def test_collectives_that_move() -> None:
    made = Made().add(*(series(rank, IN_ALL_REDUCE, looks=3) for rank in range(4)))
    assert made.hang() == []


def test_a_pipeline_whose_last_stage_computes() -> None:
    made = Made(ranks=3).add(series(0, IN_RECV), series(1, IN_RECV), series(2, STEP, share=0.9, sites=6))
    assert quiet(made.hang())


def test_a_call_that_keeps_the_lock_and_reads() -> None:
    """pickle.load of a big file: the hook is silent, the process reads."""
    reading = series(0, LOAD, hook=False, groups=(), share=0.4, bytes_s=50 << 20, sites=None)
    assert quiet(beside(*reading).hang())


def test_one_late_answer_of_a_hook() -> None:
    pulses = (
        *series(0, VALIDATE, share=0.9, sites=4, enqueued=41)[:7],
        *series(0, (), hook=False, groups=(), looks=1),
    )
    assert quiet(Made().wait([1, 2, 3]).add(pulses).hang())


def test_the_last_word_of_a_group_that_has_moved_on() -> None:
    """An entry that nobody retired, in a group that has completed more since."""
    stale = call(30, age=300)
    made = Made().add(*(series(rank, STEP, share=0.9, active=(stale,), end=NOW) for rank in range(4)))
    assert made.hang() == []
