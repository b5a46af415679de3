"""What the ranks write, on the job's own stdout."""

from __future__ import annotations

import asyncio
from pathlib import Path

from distui.runners.node.job_output import BEHIND, CHUNK, Echo, lines, take, wanted

OUT = "node-1/attempt-001/rank-3.out"
ERR = "node-1/attempt-001/rank-3.err"


def write(run_dir: Path, name: str, data: bytes) -> int:
    path = run_dir / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)
    return path.stat().st_size


async def shown(run_dir: Path, sizes: dict[str, int]) -> bytes:
    got: list[bytes] = []
    echo = Echo(run_dir, got.append)
    echo.grew(sizes)
    await echo.rest(10.0)
    return b"".join(got)


def test_what_is_shown() -> None:
    assert wanted(OUT)
    assert wanted(ERR)
    assert wanted("node-0/attempt-001/command.out")
    assert not wanted("node-1/attempt-001/rank-3.nccl")
    assert not wanted("runner.log")


def test_each_line_has_its_rank_before_it() -> None:
    assert lines(b"one\ntwo\n", b"[rank 3] ") == b"[rank 3] one\n[rank 3] two\n"
    assert lines(b"no end", b"[rank 3] ") == b"[rank 3] no end\n"
    assert lines(b" 10%\r 20%\r 30%\nnext\r\n", b"> ") == b">  30%\n> next\n"
    assert lines(b"\n\n", b"> ") == b"> \n> \n"


def test_only_whole_lines_until_the_end(tmp_path: Path) -> None:
    size = write(tmp_path, OUT, b"one\ntw")
    assert take(tmp_path, OUT, 0, size, False) == (4, b"[rank 3] one\n")
    assert take(tmp_path, OUT, 4, size, False) == (4, b"")
    size = write(tmp_path, OUT, b"o\n")
    assert take(tmp_path, OUT, 4, size, False) == (8, b"[rank 3] two\n")
    size = write(tmp_path, OUT, b"end")
    assert take(tmp_path, OUT, 8, size, True) == (11, b"[rank 3] end\n")


def test_a_line_longer_than_a_chunk_is_cut(tmp_path: Path) -> None:
    size = write(tmp_path, OUT, b"x" * (2 * CHUNK))
    at, text = take(tmp_path, OUT, 0, size, False)
    assert at == CHUNK
    assert text == b"[rank 3] " + b"x" * CHUNK + b"\n"


def test_a_flood_is_cut_short_and_says_so(tmp_path: Path) -> None:
    size = write(tmp_path, ERR, b"flood\n" * (2 * BEHIND // 6))
    at, text = take(tmp_path, ERR, 0, size, False)
    assert at == size
    assert len(text) < 4 * CHUNK
    first = text.splitlines()[0].decode()
    assert first == f"[rank 3] … 1.9 MiB of {ERR} are not shown here: `distui logs` has all of it"


async def test_streams_follow_each_other(tmp_path: Path) -> None:
    sizes = {OUT: write(tmp_path, OUT, b"a\nb\n"), ERR: write(tmp_path, ERR, b"c")}
    assert await shown(tmp_path, sizes) == b"[rank 3] c\n[rank 3] a\n[rank 3] b\n"


async def test_what_an_earlier_job_showed_is_not_shown_again(tmp_path: Path) -> None:
    write(tmp_path, OUT, b"old\n")
    got: list[bytes] = []
    echo = Echo(tmp_path, got.append)
    echo.skip()
    echo.grew({OUT: write(tmp_path, OUT, b"new\n")})
    await echo.rest(10.0)
    assert got == [b"[rank 3] new\n"]


async def test_a_file_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    assert await shown(tmp_path, {OUT: 100}) == b""


async def test_what_comes_while_it_runs(tmp_path: Path) -> None:
    came = asyncio.Event()
    got: list[bytes] = []
    loop = asyncio.get_running_loop()

    def taken(data: bytes) -> None:
        got.append(data)
        loop.call_soon_threadsafe(came.set)

    echo = Echo(tmp_path, taken)
    task = asyncio.create_task(echo.run())
    echo.grew({OUT: write(tmp_path, OUT, b"live\n")})
    async with asyncio.timeout(20):
        await came.wait()
    task.cancel()
    assert got == [b"[rank 3] live\n"]
