"""Draw the loss of a run from its metrics.jsonl, when matplotlib is installed; say how it fell in any case.

python examples/gpt/plot_loss.py output/metrics.jsonl
"""

import json
import sys
from pathlib import Path


def read(path: Path) -> tuple[list[int], list[float]]:
    """Steps and losses."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["step"] for row in rows], [row["loss"] for row in rows]


def main(path: Path) -> None:
    """Print first and last loss; write loss.png beside the metrics."""
    if not path.exists():
        raise SystemExit(f"error: {path} does not exist; a run writes it to its --save directory")
    steps, losses = read(path)
    print(f"Loss: {losses[0]:.4f} at step {steps[0]}, {losses[-1]:.4f} at step {steps[-1]}")
    try:
        from matplotlib import pyplot
    except ImportError:
        print("No plot: matplotlib is not installed; pip install -e '.[plot]' adds it")
        return
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(steps, losses)
    axes.set(xlabel="step", ylabel="loss", title="Training loss")
    axes.grid(alpha=0.3)
    figure.savefig(path.with_name("loss.png"), dpi=120)
    print(f"Plot: {path.with_name('loss.png')}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("output/metrics.jsonl"))
