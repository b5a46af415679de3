"""A training that never begins: begins.py FAULT."""

from __future__ import annotations

import importlib
import os
import sys
import time

import torch.distributed as dist
from job import Trainer, sign  # type: ignore[import-not-found]

FAULT = sys.argv[1]
RANK = int(os.environ["RANK"])


def by_hand(address: str, port: str) -> None:
    """As scripts do that know better than their launcher where rank 0 is."""
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address, port
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)


def main() -> None:
    """Break, then train."""
    if RANK == 0 or FAULT in (
        "module",
        "import",
    ):  # whoever fails first ends the other, perhaps before its sign
        sign(RANK)
    if FAULT == "module":
        importlib.import_module("flash_attn_9")
    elif FAULT == "import":
        importlib.import_module("half_edited")
    elif FAULT in ("address", "port"):
        by_hand(os.environ["FAULT_ADDRESS"], os.environ["FAULT_PORT"])
    elif FAULT == "world" and RANK == 1:
        os.environ["WORLD_SIZE"] = "3"
    elif FAULT == "late" and RANK == 1:
        wait_for_a_download()
    dist.init_process_group("gloo")
    trainer = Trainer()
    while True:
        trainer.step()


def wait_for_a_download() -> None:
    """A server that does not answer."""
    time.sleep(1e6)


main()
