"""A training without torch: one process of plain Python that fits a line and prints losses.

    python without_torch.py --steps 100

No ranks, no collectives, no GPU: it shows what distui does with any command (`distui exec -- python script.py`).
"""

from __future__ import annotations

import argparse
import random
import time


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Fit a line in plain Python.")
    parser.add_argument("--steps", type=int, default=2000, help="steps of gradient descent")
    parser.add_argument("--step-delay", type=float, default=0.05, help="seconds to wait in each step")
    parser.add_argument("--log-every", type=int, default=10, help="steps between two lines")
    return parser.parse_args()


def main() -> None:
    """Descend: y = 3 x + 1 and some noise, 64 samples a step."""
    args, chance = options(), random.Random(0)
    slope, offset, rate = 0.0, 0.0, 0.05
    print("no torch here: this process trains no network, it fits y = 3 x + 1 in plain Python", flush=True)
    for step in range(1, args.steps + 1):
        xs = [chance.uniform(-2, 2) for _ in range(64)]
        errors = [slope * x + offset - (3 * x + 1 + chance.gauss(0, 0.1)) for x in xs]
        slope -= rate * sum(2 * error * x for error, x in zip(errors, xs)) / len(xs)  # noqa: B905
        offset -= rate * sum(2 * error for error in errors) / len(errors)
        if step % args.log_every == 0 or step == args.steps:
            loss = sum(error * error for error in errors) / len(errors)
            print(f"step {step} loss {loss:.5f} slope {slope:.3f} offset {offset:.3f}", flush=True)
        time.sleep(args.step_delay)


if __name__ == "__main__":
    main()
