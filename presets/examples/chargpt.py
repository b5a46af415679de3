"""A small GPT that learns to write Python, character by character, under any distui preset.

    distui launch fsdp2 -- presets/examples/chargpt.py --steps 500
    torchrun --nproc-per-node 2 chargpt.py                    (plain DDP, without distui)

It reads the standard library's sources, so that nothing is downloaded. Read it from the bottom up: `main` is the order
of events, `Training.run` is the loop, and a preset needs `parallelize` with `forward_backward`. `tp_plan` and `pp_plan`
say how the model is divided if a preset requests it.
"""

from __future__ import annotations

import argparse
import os
import signal
import struct
import sys
import sysconfig
import threading
import time
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

try:
    from distui.runners.inrank import parallelize as preset
except ImportError:  # without distui, import the file from its folder in distui's tree
    sys.path.append(str(Path(__file__).resolve().parents[2] / "runners" / "inrank"))
    import parallelize as preset  # type: ignore[import-not-found, no-redef]

CORPUS_BYTES = 4_000_000
VOCABULARY = 128
"""ASCII. Every other byte becomes "?"."""
SIZES = ("layers", "width", "heads", "block")
"""Options of the model's shape. A checkpoint with other values is refused."""
KEPT = 2
"""Checkpoints to keep: the newest, and one more in case it is damaged."""
DAMAGED = (
    *(RuntimeError, OSError, EOFError, UnpicklingError, ValueError, LookupError, TypeError, AttributeError),
    *(AssertionError, struct.error),
)
"""Exceptions that torch.load raises for corrupt files."""
STOPPED_FOR_PEERS = 75
"""Exit code (EX_TEMPFAIL) of a rank that stopped because another rank was asked to. Not a success."""
WRONG_SETTINGS = 78
"""Exit code (EX_CONFIG) of a rank with invalid settings, which a restart would not fix."""


class Block(nn.Module):  # type: ignore[misc]
    """One transformer block: causal attention over the earlier characters, then an MLP per character."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise preset.ParallelizeError(f"a width of {width} cannot be divided by {heads} heads")
        self.heads, self.size = heads, width // heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, time, width) → the same shape."""
        qkv = self.qkv(self.norm_attention(x))  # head by head, so that tensor parallelism can divide them
        batch, length, _ = qkv.shape
        q, k, v = qkv.view(batch, length, -1, 3, self.size).permute(3, 0, 2, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, -1))
        return x + self.mlp(self.norm_mlp(x))


class CharGPT(nn.Module):  # type: ignore[misc]
    """A decoder-only transformer. `blocks` is a ModuleList, so fsdp2 shards it block by block."""

    block: Any = Block
    """Class of the blocks."""
    tp_plan: ClassVar[dict[str, str]] = {
        "blocks.*.norm_attention": "sequence_parallel",
        "blocks.*.norm_mlp": "sequence_parallel",
        "blocks.*.qkv": "colwise",
        "blocks.*.out": "rowwise",
        "blocks.*.mlp.0": "colwise",
        "blocks.*.mlp.2": "rowwise",
        "norm": "sequence_parallel",
        "head": "colwise_rep",
    }
    pp_plan: ClassVar = {"first": ("characters", "positions"), "blocks": "blocks", "last": ("norm", "head")}

    def __init__(self, layers: int, width: int, length: int, heads: int = 4) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(self.block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of predicting `y` from `x`, both (batch, time), in nats per character."""
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.loss(self.logits(h), y)

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input of the first block."""
        return self.characters(x) + self.positions(preset.positions(x.shape[1]))

    def logits(self, h: torch.Tensor) -> torch.Tensor:
        """Compute the logits from the last block's output."""
        return self.head(self.norm(h))

    @staticmethod
    def loss(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy."""
        return F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())


def corpus() -> torch.Tensor:
    """Return about CORPUS_BYTES of the standard library's sources, as character codes."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= CORPUS_BYTES:
            break
    codes = torch.frombuffer(text, dtype=torch.uint8).long()
    return torch.where(codes < VOCABULARY, codes, ord("?"))


def batch_of(step: int, data: torch.Tensor, args: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's samples, which depend only on seed, step and data rank: a resumed run gets the same ones."""
    seed = args.seed * 1_000_003 + step * preset.data_ranks() + preset.data_rank()
    count = preset.batch_size(args.batch)
    dice = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(data) - args.block - 1, (count,), generator=dice)
    rows = data[starts[:, None] + torch.arange(args.block + 1)].to(preset.device())
    return rows[:, :-1], rows[:, 1:]


def own_folder() -> Path:
    """Return this run's checkpoint folder: equal for all attempts of the run, different from other runs."""
    name = os.environ.get("DISTUI_RUN_ID", "").partition(".n")[0]  # the node's number follows
    if (
        not name and "TORCHELASTIC_RUN_ID" in os.environ
    ):  # torchrun without distui: one process restarts the ranks
        parent = os.getppid()
        began = "0"
        with suppress(OSError):  # pids are reused
            began = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
        name = f"torchrun-{parent}-{began}"
    return Path("checkpoints") / (name or time.strftime(f"%Y%m%d-%H%M%S-{os.getpid()}"))


class Checkpoints:
    """A folder of files `step-<n>.pt`. Each is written under another name, then renamed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, step: int, state: dict[str, Any]) -> None:
        """Write a checkpoint and delete the oldest."""
        self.folder.mkdir(parents=True, exist_ok=True)
        final = self.folder / f"step-{step:08d}.pt"
        partial = final.with_suffix(f".tmp-{os.getpid()}")
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(final)
        for old in sorted(self.folder.glob("step-*.pt"), key=lambda path: path.stat().st_mtime_ns)[:-KEPT]:
            old.unlink()  # the oldest, not the lowest step: a higher step may be damaged or from another run
        say(f"checkpoint {final}")

    def newest(self) -> dict[str, Any] | None:
        """Return the newest readable checkpoint, or None. A damaged one is skipped."""
        for path in sorted(self.folder.glob("step-*.pt"), reverse=True):
            try:
                state: object = torch.load(path, map_location="cpu", weights_only=True)
                if isinstance(state, dict):
                    return state
                say(f"passed over {path}: it holds no checkpoint")
            except DAMAGED as error:
                say(
                    f"passed over {path}: {type(error).__name__} {str(error).partition(chr(10))[0]}".rstrip()
                )
        return None


class Stop:
    """Handle SIGTERM as a flag with a deadline, and SIGUSR1 as a flag that requests a checkpoint.

    A rank that waits in a collective runs no Python signal handler. But C writes the signal to the
    wakeup descriptor at once, and a thread reads it there: if the loop has not checked the flag within
    `patience_s`, the other ranks exited or hang, and the process exits with its last checkpoint.
    """

    def __init__(self) -> None:
        self.asked, self.noticed, self.save = threading.Event(), threading.Event(), threading.Event()
        self.patience_s = 2.0
        self._read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGUSR1, lambda *_: self.save.set())
        threading.Thread(target=self._watch, name="sigterm", daemon=True).start()

    def _watch(self) -> None:
        while signal.SIGTERM not in os.read(self._read, 64):
            pass
        self.asked.set()
        if not self.noticed.wait(self.patience_s):
            say(f"rank {os.environ.get('RANK', '0')}: ended while it waited for other ranks")
            os._exit(0)


def rank() -> int:
    """Return this process's rank."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def first_attempt() -> bool:
    """Return True if this worker group is the first one of its run."""
    return os.environ.get("DISTUI_ATTEMPT", "1") == "1"


def say(line: str) -> None:
    """Print a line in one write, so that two ranks never share one."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def agree(loss: torch.Tensor, stop: bool, save: bool = False) -> tuple[float, bool, bool]:
    """Return (mean loss, any rank was asked to stop, any rank was asked to save) in one collective.

    Ranks get a signal at different moments, but must leave the loop after one common step: otherwise the remaining
    ranks wait forever.
    """
    votes = torch.tensor([stop, save], device=loss.device).float()
    shared = torch.cat([loss.detach().float().reshape(1), votes])
    if dist.is_initialized():
        dist.all_reduce(shared)
    total, stops, saves = shared.tolist()
    return total / world_size(), stops > 0, saves > 0


class Training:
    """The state of the loop: model, optimizer, and the number of completed steps."""

    def __init__(self, args: argparse.Namespace, stop: Stop, net: nn.Module) -> None:
        self.args, self.stop, self.step, self.data = args, stop, 0, corpus()
        self.model, self.optimizer = preset.parallelize(net, torch.optim.AdamW, lr=args.lr)
        self.checkpoints = Checkpoints(args.checkpoint_dir or own_folder())
        self.sizes = {name: getattr(args, name) for name in SIZES}
        self.printed, self.saved = (time.monotonic(), 0), 0

    def resume(self) -> None:
        """Continue from the newest checkpoint. Rank 0 reads it and sends it to the other ranks."""
        more = preset.load_saved(self.model, self.optimizer, self.wanted() if rank() == 0 else None)
        for name, size in more.get("sizes", {}).items():
            if size != self.sizes[name]:
                here = self.sizes[name]
                raise preset.ParallelizeError(
                    f"the checkpoint was made with --{name} {size}, and this run has {here}"
                )
        self.step = int(more.get("step", 0))
        self.printed, self.saved = (time.monotonic(), self.step), self.step
        if self.step and rank() == 0:
            say(f"resumed from step {self.step}")
            if self.step >= self.args.steps:
                say(f"nothing to do: {self.step} steps are done, and --steps asks for {self.args.steps}")

    def wanted(self) -> dict[str, Any] | None:
        """Return the checkpoint to continue from: this run's own, else one from the folder of --resume."""
        if self.args.resume == "never":
            return None
        saved = self.checkpoints.newest()
        if saved is not None or self.args.resume == "auto":
            return saved
        saved = Checkpoints(Path(self.args.resume)).newest()
        if saved is None:
            say(
                f"--resume {self.args.resume}: no checkpoint there can be read, so training begins at step 0"
            )
        return saved

    def run(self) -> bool:
        """Train to the last step, or until the ranks are asked to stop. Return False if other ranks exited."""
        while self.step < self.args.steps:
            began = time.monotonic()
            try:
                asked = (self.stop.asked.is_set(), self.stop.save.is_set())
                mean, stopping, saving = agree(self.advance(), *asked)
                if stopping:
                    break
                self.report(mean)
                if saving:
                    self.stop.save.clear()
                    self.save()
            except RuntimeError:
                if not self.stop.asked.wait(1.0):
                    raise
                return False  # the other ranks were also asked to stop
            self.stop.patience_s = max(2.0, 3 * (time.monotonic() - began))
            self.stop.asked.wait(self.args.step_delay)
        return True

    def advance(self) -> torch.Tensor:
        """Run one step. Return this rank's loss."""
        if self.step == self.args.hang_at and rank() == world_size() - 1 and first_attempt():
            self.hang()
        self.optimizer.zero_grad()
        loss: torch.Tensor = preset.forward_backward(self.model, *batch_of(self.step, self.data, self.args))
        self.optimizer.step()
        self.step += 1
        return loss

    def hang(self) -> None:
        """Sleep, like a rank that waits for a lock or a file system. The other ranks block in their collective."""
        say(f"rank {rank()} sleeps at step {self.step}, for demonstration")
        self.stop.asked.wait()

    def report(self, loss: float) -> None:
        """Print and save if a line or a checkpoint is due."""
        if rank() == 0 and self.step % self.args.log_every == 0:
            now, (then, step) = time.monotonic(), self.printed
            samples = (self.step - step) * preset.batch_size(self.args.batch) * preset.data_ranks()
            tokens = samples * self.args.block
            say(f"step {self.step} loss {loss:.3f} {tokens / (now - then):.0f} tok/s")
            self.printed = (now, self.step)
        if self.args.checkpoint_every and self.step % self.args.checkpoint_every == 0:
            self.save()

    def save(self) -> None:
        """Save the state: every rank contributes its part, and rank 0 writes.

        Do nothing if this step was saved before.
        """
        if self.step == self.saved:
            return
        state = preset.state_for_saving(self.model, self.optimizer, step=self.step, sizes=self.sizes)
        if rank() == 0:
            self.checkpoints.write(self.step, state)
        self.saved = self.step


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train a small GPT on Python's own sources.")
    add = parser.add_argument
    add("--steps", type=int, default=1000, help="steps to have done at the end")
    add("--batch", type=int, default=8, help="samples per rank and step, if the preset sets none")
    add("--block", type=int, default=64, help="characters a sample")
    add("--layers", type=int, default=4, help="transformer blocks")
    add("--width", type=int, default=96, help="width of the model, a multiple of --heads")
    add("--heads", type=int, default=4, help="attention heads, a multiple of a preset's tp")
    add("--lr", type=float, default=1e-3, help="learning rate of AdamW")
    add("--checkpoint-dir", type=Path, help="where checkpoints are; else checkpoints/<this run>")
    add("--checkpoint-every", type=int, default=100, help="steps between two; 0: only at the end")
    add("--log-every", type=int, default=10, help="steps between two lines")
    add(
        "--resume",
        default="auto",
        metavar="FOLDER|auto|never",
        help="auto: from the newest in --checkpoint-dir; FOLDER: from the newest there, where that has none",
    )
    add("--step-delay", type=float, default=0.0, help="seconds to wait in each step, for demonstrations")
    add(
        "--hang-at",
        type=int,
        help="step at which the last rank hangs in its first attempt, for demonstrations",
    )
    add("--seed", type=int, default=0, help="of the weights and of the order of the data")
    return parser.parse_args()


def main(model: type[CharGPT] = CharGPT) -> int:
    """Build, resume, train, save and exit. Return the exit code."""
    args, stop = options(), Stop()
    torch.manual_seed(args.seed)
    training = Training(args, stop, model(args.layers, args.width, args.block, args.heads))
    say(f"rank {rank()} of {world_size()}: {preset.strategy()} on {preset.device()}, pid {os.getpid()}")
    training.resume()
    together = training.run()
    stop.noticed.set()
    # If the other ranks exited, only a rank with the complete state can save it.
    if together or preset.strategy() == "ddp":
        training.save()
    done = training.step >= args.steps
    del training
    preset.finish(together)
    # A rank that was not asked to stop must not exit with 0.
    return 0 if done or stop.asked.wait(5.0) else STOPPED_FOR_PEERS


def refused(script: str, error: Exception) -> int:
    """Print the reason for the refusal. Return the exit code."""
    sys.stderr.write(f"{script}: {error}\n")
    return WRONG_SETTINGS


if __name__ == "__main__":
    try:
        sys.exit(main())
    except preset.ParallelizeError as error:
        sys.exit(refused("chargpt", error))
