"""Print the first and last loss of a run from its metrics.jsonl; draw its curve if matplotlib is installed.

python examples/gpt/plot_loss.py output/metrics.jsonl
"""

import json
import sys
from pathlib import Path

# Lets the script run from a clone without installation.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from parallel_core.system.command_line import command_line

Curve = tuple[list[int], list[float]]
"""(steps, losses) of a curve."""


def read(path: Path) -> tuple[Curve, Curve]:
    """The curve of the training and that of the evaluations. Raises ValueError if the file cannot be read or
    has no loss of a training step."""
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        train, valid = (
            ([row["step"] for row in rows if name in row], [row[name] for row in rows if name in row])
            for name in ("loss", "validation_loss")
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); a run writes metrics.jsonl to its --save folder") from None
    if not train[0]:
        raise ValueError(f"{path}: has no step yet")
    return train, valid


def main(argv: list[str] | None = None) -> None:
    """Print the first and last losses; write loss.png beside the metrics if matplotlib is installed. A file that `read`
    refuses exits with status 2."""
    parser = command_line(__doc__)
    parser.add_argument("metrics", nargs="?", type=Path, default=Path("output/metrics.jsonl"), help="the file")
    path = parser.parse_args(argv).metrics
    try:
        curves = dict(zip(("Loss", "Evaluation"), read(path), strict=True))
    except ValueError as error:
        parser.error(str(error))
    for name, (steps, losses) in curves.items():
        ends = [*dict.fromkeys([0, len(steps) - 1])] if steps else []
        if ends:
            print(f"{name}: " + ", ".join(f"{losses[end]:.4f} at step {steps[end]}" for end in ends))
    try:
        from matplotlib import pyplot
    except ImportError:
        print("No plot: matplotlib is not installed; pip install -e '.[plot]' adds it")
        return
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for name, (steps, losses) in ((name, curve) for name, curve in curves.items() if curve[0]):
        axes.plot(steps, losses, marker="" if name == "Loss" else "o", label=name)
    axes.set(xlabel="step", ylabel="loss", title="Training loss")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path.with_name("loss.png"), dpi=120)
    print(f"Plot: {path.with_name('loss.png')}")


if __name__ == "__main__":
    main()
