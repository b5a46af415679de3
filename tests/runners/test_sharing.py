"""A read-only share: who reaches its socket, what is answered there, and when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import typing
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from doubles.served import Served, doubled

from distui.runners.agent import sharing
from distui.runners.agent.server import READS, read_only_refusal
from distui.runners.node.shares import share_command
from distui.runners.run import shared_sockets, snapshot
from distui.runners.run.answers import LogWindow, MetricsWindow
from distui.runners.run.commands import (
    Command,
    Hello,
    ReadLog,
    ReadMetrics,
    RunCommand,
    Share,
    Stop,
    Unshare,
    Via,
)
from distui.runners.run.errors import RunError
from distui.runners.run.model import CommandDone, CommandReceived, Folded, RunCreated, RunEnded, Stamped
from distui.runners.run.wire import shared_link
from distui.runners.run.wire.client import LinkError, SocketLink
from distui.runners.run.wire.frames import decode_from_agent, encode, read_line, skip_to_magic
from distui.tui.shared_source import SharedSource

BOB, CAROL = 51001, 51002
TEAM = 52001
OTHER_TEAM = 52002

LOG = "node-0/attempt-001/rank-0.out"


@contextlib.contextmanager
def account(uid: int, *groups: int) -> Iterator[None]:
    """Another account for this process: the kernel records it for each connection that is made meanwhile."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    before = os.getgroups()
    os.setgroups(groups)
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)


async def shared(run: Served, **terms: typing.Any) -> Path:
    """Share a run; the path of the socket."""
    done = await run.link.send(Share("share", "a guest", **terms))
    assert done.ok, done.text
    return Path(done.data["socket"])


async def readable(path: Path) -> str:
    """Return "" if the run can be read at this socket, else why not."""
    try:
        link = await shared_link.connect(path)
    except LinkError as error:
        return str(error)
    try:
        async for stamped in link.events():
            if isinstance(stamped.event, RunCreated):
                return ""
    except LinkError as error:
        return str(error)
    finally:
        await link.close()
    return "no event came"


def connected(path: Path, uid: int, *groups: int) -> socket.socket:
    """Return a connection that an account has made. Raises PermissionError."""
    peer = socket.socket(socket.AF_UNIX)
    with account(uid, *groups):
        try:
            peer.connect(str(path))
        except OSError:
            peer.close()
            raise
    return peer


async def is_greeted(peer: socket.socket) -> bool:
    """Return whether the agent says anything to a connection."""
    reader, writer = await asyncio.open_unix_connection(sock=peer)
    try:
        return bool(await reader.read(100))
    except ConnectionError:
        return False
    finally:
        writer.transport.abort()


# --- who reaches it


async def test_only_the_named_user_reaches_the_socket() -> None:
    async with doubled() as (run, _):
        path = await shared(run, user=BOB)
        assert await is_greeted(connected(path, BOB))
        assert await is_greeted(connected(path, 0)), "root and the owner"
        with pytest.raises(PermissionError):
            connected(path, CAROL, BOB)  # a group with the same number is none


async def test_only_members_of_the_named_group_reach_the_socket() -> None:
    async with doubled() as (run, _):
        path = await shared(run, group=TEAM)
        assert await is_greeted(connected(path, CAROL, TEAM)), "a supplementary group"
        with pytest.raises(PermissionError):
            connected(path, CAROL, OTHER_TEAM)
        with pytest.raises(PermissionError):
            connected(path, TEAM + 1)


async def test_without_access_lists_the_server_rejects_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", unsupported)
    async with doubled() as (run, _):
        to_bob, to_team = await shared(run, user=BOB), await shared(run, group=TEAM)
        assert stat.S_IMODE(to_bob.parent.stat().st_mode) == 0o711
        assert await is_greeted(connected(to_bob, BOB))
        assert not await is_greeted(connected(to_bob, CAROL, BOB))
        assert await is_greeted(connected(to_team, CAROL, OTHER_TEAM, TEAM))
        assert not await is_greeted(connected(to_team, CAROL, OTHER_TEAM))


async def test_nothing_else_of_the_run_comes_within_reach() -> None:
    async with doubled() as (run, _):
        path = await shared(run, user=BOB)
        with account(BOB):
            assert not os.access(run.path, os.X_OK, effective_ids=True)
            with pytest.raises(PermissionError):
                os.listdir(path.parent)
            with pytest.raises(PermissionError):
                (path.parent / "planted").touch()
            with pytest.raises(PermissionError):
                path.unlink()


async def test_what_stands_for_unknown_accounts_is_no_guest() -> None:
    async with doubled() as (run, _):
        for terms in ({"user": shared_sockets.UNMAPPED}, {"group": shared_sockets.UNMAPPED}):
            done = await run.link.send(Share("s", "user nobody", **terms))
            assert (done.ok, done.data) == (False, {})
            assert "stands for every account that this host does not know" in done.text


@pytest.mark.parametrize("number", ["9" * 5000, "4294967295", "-1"])
def test_a_number_that_no_account_has_is_refused(number: str) -> None:
    with pytest.raises(RunError, match="unknown user"):
        share_command(number, None, None)


async def test_a_socket_that_others_could_replace_is_not_connected_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert "can be changed by several users" in await readable(tmp_path / "run.sock")


async def test_another_account_that_listens_at_the_path_is_not_believed(tmp_path: Path) -> None:
    """The directory is one user's, and another process listens there."""
    path = tmp_path / "run.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        with account(BOB):
            server.listen()
        assert "another user listens there" in await readable(path)


# --- what is answered there


def requests() -> list[Command]:
    """One request of every kind of the protocol, also of those that are added later."""

    def example(kind: type[msgspec.Struct]) -> Command:
        values = {"id": "asked", "file": LOG, "begin": 0.0, "end": 1.0, "node": 1, "minutes": 1}
        needed = {field.name for field in msgspec.structs.fields(kind) if field.required}
        return kind(**{name: values.get(name, "x") for name in needed})  # type: ignore[return-value]

    return [example(kind) for kind in typing.get_args(Command)]


@contextlib.asynccontextmanager
async def guest(path: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection of its own making: it sends what no viewer of ours would."""
    reader, writer = await asyncio.open_unix_connection(path)
    await skip_to_magic(reader)
    await read_line(reader)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def answer(reader: asyncio.StreamReader) -> typing.Any:
    """The next answer, which is no event of the journal."""
    while line := await read_line(reader):
        frame = decode_from_agent(line)
        if not isinstance(frame, Stamped):
            return frame
        if isinstance(frame.event, CommandDone) and not frame.seq:
            return frame.event
    raise AssertionError("the agent hung up")


@pytest.mark.parametrize("greets", [True, False], ids=["after Hello", "without Hello"])
async def test_every_request_that_is_no_read_is_refused(greets: bool) -> None:
    async with doubled() as (run, runners):
        await run.hooked()
        path = await shared(run, user=BOB)
        before = len(run.all_of(CommandReceived))
        async with guest(path) as (reader, writer):
            if greets:
                writer.write(encode(Hello()))
            for request in requests():
                if isinstance(request, READS):
                    continue
                writer.write(encode(request))
                done = await answer(reader)
                assert isinstance(done, CommandDone), request
                assert (done.ok, done.text) == (False, "this connection is read-only"), request
                assert done.id == getattr(request, "id", "via")
                assert not done.data
        assert len(run.all_of(CommandReceived)) == before, "nothing is journaled"
        assert (run.state.phase, run.state.attempt) == ("running", 1)
        assert not [one for one in runners.newest.asked if one["op"] in ("restart", "stop", "env")]


def test_the_list_of_reads_is_a_list_of_what_is_allowed() -> None:
    kinds = {type(request) for request in requests()}
    assert {Via, Stop, Share, Unshare} < kinds
    assert len(kinds) >= 14
    allowed = {type(request) for request in requests() if not read_only_refusal(request)}
    assert allowed == {Hello, ReadLog, ReadMetrics}
    assert not any(issubclass(kind, RunCommand) for kind in allowed)


async def test_a_hello_without_readonly_changes_nothing() -> None:
    async with doubled() as (run, _):
        await run.hooked()
        async with guest(await shared(run, user=BOB)) as (reader, writer):
            for _ in range(2):
                writer.write(encode(Hello(readonly=False)) + encode(Stop("s")))
                assert not (await answer(reader)).ok
        assert run.state.phase == "running"


async def test_logs_are_read_through_the_protocol_and_other_files_are_not() -> None:
    async with doubled() as (run, _):
        await run.hooked()
        (run.path / LOG).write_text("step 1 loss 2.0\n")
        (run.path / "notes.jsonl").write_text("private\n")
        for link in (
            await shared_link.connect(await shared(run, user=BOB)),
            await SocketLink.connect(Path(f"{run.agent.served.stem}.sock"), readonly=True),
        ):
            await anext(link.events())
            assert (await link.read_log(ReadLog(LOG))).data == b"step 1 loss 2.0\n"
            assert not (await link.read_metrics(ReadMetrics("m", 0.0, 1.0))).error
            for file in (
                "environ",
                "plan.json",
                "notes.jsonl",
                "made-here",
                "journal.jsonl",
                "../x",
                "/etc/passwd",
            ):
                window = await link.read_log(ReadLog(file))
                assert "is not a log of the run" in window.error, file
                assert not window.data
            await link.close()


async def test_answers_of_failed_reads_have_the_form_of_the_request() -> None:
    async with doubled() as (run, _), guest(await shared(run, user=BOB)) as (reader, writer):
        writer.write(encode(ReadLog("environ", id="a")))
        assert await answer(reader) == LogWindow(
            "a",
            "environ",
            0,
            0,
            0,
            0,
            error="this connection is read-only, and 'environ' is not a log of the run",
        )
        writer.write(encode(ReadMetrics("b", 0.0, 1.0)))
        assert isinstance(await answer(reader), MetricsWindow)


def test_a_log_with_an_absurd_number_is_refused() -> None:
    """It is an error of the request, and no failure of the agent, which would be a finding of the run."""
    for file in (
        "node-{}/attempt-001/rank-0.out",
        "node-0/attempt-{}/rank-0.out",
        "node-0/attempt-001/rank-{}.out",
    ):
        assert "is not a log of the run" in read_only_refusal(ReadLog(file.format("9" * 5000)))


async def test_a_history_is_queued_once_for_a_guest_who_does_not_read() -> None:
    async with doubled() as (run, _):
        await run.hooked()
        chronicle, sent = run.agent.served.chronicle, list[Folded | None]()
        for number in range(snapshot.EVERY):
            chronicle.emit(CommandReceived(f"c{number}", "x" * 400, "x"))
        folded = chronicle.folded

        def counted(hello: Hello) -> Folded | None:
            sent.append(folded(hello))
            return sent[-1]

        chronicle.folded = counted  # type: ignore[method-assign]
        async with guest(await shared(run, user=BOB)) as (_reader, writer):
            writer.write(encode(Hello(fold=snapshot.fold_id())) * 3000)
            await writer.drain()
            await asyncio.sleep(1.0)
        assert sent[0] is not None
        assert len(sent) < 100


async def test_secrets_of_the_launch_stay_masked() -> None:
    async with doubled(env={"API_TOKEN": "correct-horse-battery"}) as (run, _):
        await run.hooked()
        async with guest(await shared(run, user=BOB)) as (reader, writer):
            writer.write(encode(Hello()))
            came = b""
            while b'"CaughtUp"' not in came:
                came += await reader.readline()
        assert b"API_TOKEN" in came
        assert b"correct-horse" not in came


# --- when it ends


@pytest.mark.parametrize("turns", range(1, 6))
async def test_a_connection_that_is_accepted_while_the_share_ends_is_not_served(turns: int) -> None:
    ended, served_after = asyncio.Event(), []

    async def serve(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        served_after.append(ended.is_set())

    folder = shared_sockets.make_folder("5ea8c16c")
    opened = sharing.OpenShare(Share("s", "user bob", user=BOB), folder, serve)
    await opened.open()
    with connected(Path(opened.socket), BOB):
        for _ in range(turns):
            await asyncio.sleep(0)
        opened.close()
        ended.set()
        await asyncio.sleep(0.1)
    assert True not in served_after


async def test_shares_that_are_still_opening_count_and_end() -> None:
    async with doubled() as (run, _):
        asked = [run.link.send(Share(f"s{number}", "a guest", user=BOB)) for number in range(40)]
        assert sum(done.ok for done in await asyncio.gather(*asked)) == sharing.MOST_SHARES
        await run.link.send(Unshare("u"))
        opening = run.link.send(Share("t", "a guest", user=BOB))
        done, _ended = await asyncio.gather(opening, run.link.send(Unshare("v")))
        assert not (done.ok and Path(done.data["socket"]).exists())


async def test_a_share_that_comes_back_has_to_be_of_the_same_user() -> None:
    """Any account can make the directory anew after the share has ended."""
    async with doubled() as (run, _):
        path = await shared(run, user=os.getuid())
        source = SharedSource(path)
        await (await source.open("")).close()
        await run.link.send(Unshare("u"))
        path.parent.mkdir(mode=0o755)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            with account(BOB):
                server.listen()
            os.chown(path.parent, BOB, BOB)
            with pytest.raises(LinkError, match="another user's socket"):
                await source.open("")
        shared_sockets.remove(path.parent)


async def test_off_ends_the_connections_and_removes_the_sockets() -> None:
    async with doubled() as (run, _):
        paths = [await shared(run, user=BOB), await shared(run, group=TEAM)]
        async with guest(paths[0]) as (reader, _writer):
            done = await run.link.send(Unshare("u", str(paths[0])))
            assert (done.ok, done.text) == (True, "1 share ended")
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        assert [path.parent.exists() for path in paths] == [False, True]
        assert (await run.link.send(Unshare("v"))).text == "1 share ended"
        assert not paths[1].parent.exists()
        assert (await run.link.send(Unshare("w"))).text == "the run was not shared"
        assert "the share has ended" in await readable(paths[0])


async def test_it_ends_after_its_time() -> None:
    async with doubled() as (run, _):
        done = await run.link.send(Share("s", "user bob", user=BOB, seconds=90.0))
        assert done.text == "shared read-only with user bob for 90 s"
        path = Path(done.data["socket"])
        await asyncio.sleep(85.0)
        assert await readable(path) == ""
        await asyncio.sleep(10.0)
        assert not path.parent.exists()
    assert run.all_of(CommandReceived)[0].text == "read-only share with user bob for 90 s requested"


async def test_the_end_of_the_run_ends_it_and_a_guest_does_not_keep_the_agent() -> None:
    async with doubled() as (run, _):
        await run.hooked()
        path = await shared(run, user=BOB)
        link = await shared_link.connect(path)
        came: list[Stamped] = []

        async def follow() -> None:
            async for stamped in link.events():
                came.append(stamped)

        following = asyncio.create_task(follow())
        await run.send(Stop("stop", grace_s=2.0))
        await following
        assert isinstance(came[-1].event, RunEnded | CommandDone), "the guest learns of the end"
        await run.link.close()
        await run.agent.server.idle.wait()
    assert not path.parent.exists()
    await link.close()


async def test_a_killed_agent_leaves_nothing_for_long(
    monkeypatch: pytest.MonkeyPatch, socket_folder: Path
) -> None:
    monkeypatch.setattr(shared_sockets, "FOLDER", str(socket_folder))
    left = shared_sockets.make_folder("1a2b3c4d")
    shared_sockets.listen(left).close()
    other = shared_sockets.make_folder("55556666")
    (socket_folder / "distui-share-1a2b3c4d-file").symlink_to(other)
    shared_sockets.sweep("1a2b3c4d")
    assert not left.exists()
    assert other.exists()


# --- limits


async def test_guests_cannot_take_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "MOST_GUESTS", 2)
    monkeypatch.setattr(sharing, "MOST_SHARES", 1)
    async with doubled() as (run, _):
        path = await shared(run, user=BOB)
        assert "has 1 shares" in (await run.link.send(Share("t", "user carol", user=CAROL))).text
        async with guest(path), guest(path):
            assert "for another user or group" in await readable(path)
        for _ in range(3):
            await asyncio.sleep(0.1)
        assert await readable(path) == ""


async def test_a_folder_that_others_could_replace_is_not_used(
    monkeypatch: pytest.MonkeyPatch, socket_folder: Path
) -> None:
    socket_folder.chmod(0o777)
    monkeypatch.setattr(shared_sockets, "FOLDER", str(socket_folder))
    async with doubled() as (run, _):
        done = await run.link.send(Share("s", "user bob", user=BOB))
        assert (done.ok, "another account" in done.text) == (False, True), done.text
