"""A small GPT that learns to write Python, character by character, under any distui preset.

    distui launch fsdp2 -- presets/examples/chargpt.py --steps 500
    torchrun --nproc-per-node 2 chargpt.py                    (the same, without distui: plain DDP)

It reads the standard library's own sources, so nothing is downloaded. Read it from the bottom up:
`main` is the order of things, `train` the loop, and `parallelize` the only line a preset needs.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

try:
    from distui.runners.inrank import parallelize as preset
except ImportError:  # this Python has no distui: the one file is found where distui's tree keeps it
    sys.path.append(str(Path(__file__).resolve().parents[2] / "runners" / "inrank"))
    import parallelize as preset  # type: ignore[no-redef]

CORPUS_BYTES = 4_000_000
VOCABULARY = 128
"""ASCII; every other character reads as "?"."""
STOPPED_FOR_PEERS = 75
"""Exit code (EX_TEMPFAIL) of a rank that stopped because another rank was asked to: not a success."""


# --- the model ---------------------------------------------------------------------------------


class Block(nn.Module):  # type: ignore[misc]
    """One transformer block: look at the characters before, then think about each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, time, width) → the same shape."""
        batch, length, width = x.shape
        split = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_mlp(x))


class CharGPT(nn.Module):  # type: ignore[misc]
    """A decoder-only transformer over characters. `blocks` is a ModuleList, so FSDP2 shards by block."""

    def __init__(self, layers: int, width: int, block: int) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(block, width)
        self.blocks = nn.ModuleList(Block(width, heads=max(1, width // 32)) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy, nats a character, of predicting `y` from `x`, both (batch, time)."""
        h = self.characters(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        logits = self.head(self.norm(h))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


# --- the data ----------------------------------------------------------------------------------


def corpus() -> torch.Tensor:
    """The standard library's sources, at most CORPUS_BYTES of them, as character codes."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= CORPUS_BYTES:
            break
    codes = torch.frombuffer(text, dtype=torch.uint8).long()
    return torch.where(codes < VOCABULARY, codes, ord("?"))


def batch_of(step: int, data: torch.Tensor, args: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's samples of one step: they depend on seed, step and rank only, so a resumed run
    sees what an unbroken one would have seen."""
    dice = torch.Generator().manual_seed(args.seed * 1_000_003 + step * world_size() + rank())
    starts = torch.randint(len(data) - args.block - 1, (args.batch,), generator=dice)
    rows = data[starts[:, None] + torch.arange(args.block + 1)].to(preset.device())
    return rows[:, :-1], rows[:, 1:]


# --- checkpoints -------------------------------------------------------------------------------


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Every rank gathers, rank 0 writes: to a temporary name first, so that a file with the final
    name is always whole. The newest two are kept."""
    state = preset.state_for_saving(model, optimizer, step=step)
    if rank() != 0:
        return
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{step:08d}.pt"
    partial = final.with_suffix(f".tmp-{os.getpid()}")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(final)
    for old in sorted(folder.glob("step-*.pt"))[:-2]:
        old.unlink()
    say(f"checkpoint {final}")


def newest(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that can be read, or None. One torn by a full disk is passed over."""
    for path in sorted(folder.glob("step-*.pt"), reverse=True):
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            return state
        except (RuntimeError, OSError, EOFError, ValueError) as error:
            say(f"checkpoint {path} cannot be read and is passed over: {str(error).splitlines()[0]}")
    return None


# --- the end -----------------------------------------------------------------------------------


class Stop:
    """SIGTERM as a flag, and a way out for a rank that cannot look at it.

    A rank that waits in a collective runs no Python handler. The wakeup descriptor is written by
    the C handler at once, and a thread reads it: if the loop has not looked within `patience_s`, peers
    are gone or stuck, the checkpoint on disk is what there is, and the process ends with 0.
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.noticed = threading.Event()
        self.patience_s = 2.0
        self._read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write)
        signal.signal(signal.SIGTERM, lambda *_: None)
        threading.Thread(target=self._watch, name="sigterm", daemon=True).start()

    def _watch(self) -> None:
        while signal.SIGTERM not in os.read(self._read, 64):
            pass
        self.asked.set()
        if not self.noticed.wait(self.patience_s):
            print(f"rank {os.environ.get('RANK', '0')}: ended while waiting for other ranks", flush=True)
            os._exit(0)


# --- training ----------------------------------------------------------------------------------


def rank() -> int:
    """This process among all."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def say(line: str) -> None:
    """Print a whole line at once, so that two ranks never share one."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def agree(loss: torch.Tensor, stop: bool) -> tuple[float, bool]:
    """(mean loss over the ranks, whether any rank was asked to stop), in one collective.

    Ranks get SIGTERM at different moments; they must leave the loop after the same step, or the one
    that goes on waits for the others for ever.
    """
    both = torch.stack([loss.detach().float(), torch.tensor(float(stop), device=loss.device)])
    if dist.is_initialized():
        dist.all_reduce(both)
    total, votes = both.tolist()
    return total / world_size(), votes > 0


def train(
    args: argparse.Namespace, stop: Stop, model: nn.Module, optimizer: torch.optim.Optimizer, step: int
) -> tuple[int, bool]:
    """Train from `step` on; (steps done, whether the ranks stopped together)."""
    data, stopping, began, since = corpus(), False, time.monotonic(), step
    while step < args.steps and not stopping:
        before = time.monotonic()
        try:
            loss = model(*batch_of(step, data, args))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            mean, stopping = agree(loss, stop.asked.is_set())
        except RuntimeError:
            if not stop.asked.wait(1.0):
                raise
            return step, False  # the peers are gone because they were asked to, like this rank
        if rank() == 0 and step % args.log_every == 0:
            rate = args.batch * args.block * world_size() * (step - since) / (time.monotonic() - began)
            say(f"step {step} loss {mean:.3f} {rate:.0f} tok/s")
            began, since = time.monotonic(), step
        if args.checkpoint_every and step % args.checkpoint_every == 0 and not stopping:
            save(args.checkpoint_dir, step, model, optimizer)
        stop.patience_s = max(2.0, 3 * (time.monotonic() - before))
        stop.asked.wait(args.step_delay)
    return step, True


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train a small GPT on Python's own sources.")
    add = parser.add_argument
    add("--steps", type=int, default=1000, help="steps to have done at the end")
    add("--batch", type=int, default=8, help="samples a rank and step")
    add("--block", type=int, default=64, help="characters a sample")
    add("--layers", type=int, default=2, help="transformer blocks")
    add("--width", type=int, default=96, help="width of the model, a multiple of 32")
    add("--lr", type=float, default=1e-3, help="learning rate of AdamW")
    add("--checkpoint-dir", type=Path, default=Path("checkpoints"), help="where checkpoints are")
    add("--checkpoint-every", type=int, default=100, help="steps between two; 0: only at the end")
    add("--log-every", type=int, default=10, help="steps between two lines")
    add("--resume", choices=["auto", "never"], default="auto", help="auto: go on from the newest checkpoint")
    add("--step-delay", type=float, default=0.0, help="seconds to wait after each step, for demonstrations")
    add("--seed", type=int, default=0)
    return parser.parse_args(argv)


def main() -> int:
    """Build, resume, train, save, leave. Returns the exit code."""
    args, stop = options(), Stop()
    torch.manual_seed(args.seed)
    net = CharGPT(args.layers, args.width, args.block)
    model, optimizer = preset.parallelize(net, torch.optim.AdamW, lr=args.lr)
    say(f"rank {rank()} of {world_size()}: {preset.strategy()} on {preset.device()}, pid {os.getpid()}")
    found = newest(args.checkpoint_dir) if args.resume == "auto" and rank() == 0 else None
    first = int(preset.load_saved(model, optimizer, found).get("step", 0))
    if rank() == 0 and first:
        say(f"resumed from step {first}")
    step, together = train(args, stop, model, optimizer, first)
    stop.noticed.set()
    if step > first:
        save_last(args, step, model, optimizer, together)
    del net, model, optimizer
    preset.finish(together)
    # Only a rank that was asked itself may end as a success: its launcher meant it.
    return 0 if step >= args.steps or stop.asked.wait(5.0) else STOPPED_FOR_PEERS


def save_last(
    args: argparse.Namespace, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, together: bool
) -> None:
    """Save at the end; where peers are gone, only if this rank has the whole state by itself."""
    try:
        if together or preset.strategy() in ("single", "ddp"):
            save(args.checkpoint_dir, step, model, optimizer)
    except RuntimeError as error:
        if together and step >= args.steps:
            raise
        say(f"rank {rank()}: no last checkpoint: {str(error).splitlines()[0]}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except preset.ParallelizeError as error:
        sys.exit(f"chargpt: {error}")
