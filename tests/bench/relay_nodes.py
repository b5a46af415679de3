"""The nodes of a relayed run, as processes to measure: `relay_nodes.py head|viewer|crowd DIRECTORY NODES PORT`.

`head`: store and runner's part of node 0. `viewer`: agent's part of node 0 with a stream to every other node.
`crowd`: both parts of all other nodes, each telling what an agent with eight GPUs and eight ranks does, 6 to 7 kB a
second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
import threading
import time
from pathlib import Path

from distui.runners.agent.relay_client import AgentRelay as Agent
from distui.runners.agent.relay_client import Stream
from distui.runners.inrank import coordinator
from distui.runners.inrank.control import Control
from distui.runners.inrank.relay import Relay as Runner
from distui.runners.run.model import Stamped
from distui.runners.run.wire.frames import encode

sys.path.insert(0, str(Path(__file__).parent))
from ssh_nodes import Samples  # type: ignore[import-not-found]

RUN = "20260101-000000-bench-00000000"
STORE_KEY = b"the key of the runners' rendezvous"


def control(directory: Path, node: int, nodes: int, port: int) -> None:
    """One runner's part, reached at `c<node>`."""
    made = Control(str(directory / f"c{node}"), lambda request, peer: {"ok": True}, lambda peer: None)
    made.start()
    made.takers["relay"] = Runner("127.0.0.1", port, STORE_KEY, RUN, node, nodes).serve


def head(directory: Path, nodes: int) -> None:
    """Hold the store until stdin ends."""
    port = coordinator.start("127.0.0.1", 0, STORE_KEY, (1, nodes, 1.0))
    control(directory, 0, nodes, port)
    print(port, flush=True)
    sys.stdin.read()


async def viewer(directory: Path, nodes: int) -> None:
    """Open a stream to every node, and say what came of each line that is asked for on stdin."""
    agent = Agent(0, nodes, directory / "nobody")
    running = asyncio.create_task(agent.run(lambda: str(directory / "c0")))
    while not agent.up:
        await asyncio.sleep(0.01)
    began = time.monotonic()
    streams = await asyncio.gather(*(agent.open(node) for node in range(1, nodes)))
    heard = [0] * nodes
    readers = [asyncio.create_task(read(stream, heard)) for stream in streams]
    while min(heard[1:]) == 0:
        await asyncio.sleep(0.01)
    print(json.dumps({"connected_s": time.monotonic() - began}), flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps({"bytes": sum(heard)}), flush=True)
    for task in [*readers, running]:
        task.cancel()


async def read(stream: Stream, heard: list[int]) -> None:
    """Count what comes."""
    while data := await stream.read():
        heard[stream.peer] += len(data)


async def crowd(directory: Path, nodes: int, port: int) -> None:
    """All nodes but the head."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    server = await asyncio.start_unix_server(tell, str(directory / "tells"))
    await asyncio.gather(
        *(asyncio.to_thread(control, directory, node, nodes, port) for node in range(1, nodes))
    )
    agents = [Agent(node, nodes, directory / "tells") for node in range(1, nodes)]
    running = [
        asyncio.create_task(agent.run(lambda node=node: str(directory / f"c{node}")))  # type: ignore[misc]
        for node, agent in enumerate(agents, 1)
    ]
    while not all(agent.up for agent in agents):
        await asyncio.sleep(0.05)
    print("up", flush=True)
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    while not ended.is_set():
        await asyncio.sleep(0.2)
    server.close()
    for task in running:
        task.cancel()


async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As an agent tells a viewer, once a second."""
    samples = Samples(1)
    with contextlib.suppress(OSError):
        while True:
            writer.writelines(encode(Stamped(time.time(), event, node=1)) for event in samples.sampled())
            await writer.drain()
            await asyncio.sleep(1.0)


if __name__ == "__main__":
    role, where, count, port = sys.argv[1:5]
    if role == "head":
        head(Path(where), int(count))
    elif role == "viewer":
        asyncio.run(viewer(Path(where), int(count)))
    else:
        asyncio.run(crowd(Path(where), int(count), int(port)))
