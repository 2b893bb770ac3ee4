"""`python -m pynative.moe.plot_token_distribution`: a picture of each layer's tokens per expert over the steps.

Reads what --save-token-distribution wrote and draws, for each layer, the experts' counts stacked over the steps into
<prefix>layer-<l>_token_distribution.jpg; and prints the experts that got most tokens in the last step.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont  # MindSpore's own dependency

from parallel_core.numerics.dtypes import Array
from parallel_core.system.command_line import command_line

LEFT, TOP, WIDTH, HEIGHT = 80, 40, 640, 360
"""Left and upper margin of the chart, and its size, in pixels."""
_FILE = re.compile(r"layer-(\d+)_(\d+)\.npy")


def counts_of_layer(directory: Path, layer: int) -> tuple[Array, Array]:
    """(Steps [n], tokens of each expert [n, E]) of a layer, in the order of steps, from all files below a directory.

    A run that is resumed writes to a directory of its own, named by its time: of a step that several files have, the
    counts of the last in the order of paths are taken. layer: its number, from 0. Both arrays are empty if no file is
    of the layer. Raises ValueError if the counts taken are of different numbers of experts.
    """
    found = {int(match[2]): path for path in sorted(directory.rglob("*.npy")) if (match := _FILE.fullmatch(path.name))
             and int(match[1]) == layer}  # fmt: skip
    steps = sorted(found)
    counts = [np.load(found[step], allow_pickle=False) for step in steps]
    sizes = sorted({len(row) for row in counts})
    if len(sizes) > 1:
        raise ValueError(f"{directory}: layer {layer} has {sizes} experts: these are several models; give one's runs")
    return np.array(steps), np.array(counts)


def hottest(counts: Array, number: int) -> list[int]:
    """The `number` experts that got most tokens in the last step, the hottest first. counts: [steps, E]."""
    return np.argsort(-counts[-1], kind="stable")[:number].tolist()


def _areas(steps: Array, counts: Array) -> Iterator[list[tuple[float, float]]]:
    """Yield, for each expert, the corners in pixels of its band of the chart, on top of the bands before it."""
    span, highest = max(int(steps[-1] - steps[0]), 1), max(counts.sum(axis=1).max(), 1)
    x = LEFT + WIDTH * (steps - steps[0]) / span
    if len(steps) == 1:
        x, counts = np.array([LEFT, LEFT + WIDTH]), np.repeat(counts, 2, axis=0)
    edges = np.concatenate([np.zeros((len(counts), 1)), counts.cumsum(axis=1)], axis=1)
    y = TOP + HEIGHT * (1 - edges / highest)
    for expert in range(counts.shape[1]):
        lower, upper = (list(zip(x.tolist(), y[:, edge].tolist(), strict=True)) for edge in (expert, expert + 1))
        yield lower + upper[::-1]


def draw(layer: int, steps: Array, counts: Array) -> Image.Image:
    """The chart of a layer: tokens of each expert [n, E], stacked, over the steps [n]."""
    bottom, right = TOP + HEIGHT, LEFT + WIDTH
    picture = Image.new("RGB", (right + 30, bottom + 50), "white")
    pen, number = ImageDraw.Draw(picture), counts.shape[1]
    for expert, corners in enumerate(_areas(steps, counts)):
        pen.polygon(corners, fill=f"hsl({360 * expert // number}, 60%, {60 + 15 * (expert % 2)}%)")
    pen.rectangle((LEFT, TOP, right, bottom), outline="black")
    for x, y, anchor, text in (
        (LEFT + WIDTH / 2, TOP - 15, "mm", f"Layer-{layer}_Token_Distribution"),
        (LEFT + WIDTH / 2, bottom + 35, "mm", "num of step"),
        (10, TOP - 15, "lm", "num of token"),
        (LEFT, bottom + 14, "mm", str(steps[0])),
        (right, bottom + 14, "mm", str(steps[-1])),
        (LEFT - 6, TOP + 4, "rm", str(int(counts.sum(axis=1).max()))),
        (LEFT - 6, bottom - 4, "rm", "0"),
    ):
        pen.text((x, y), text, fill="black", font=ImageFont.load_default(), anchor=anchor)
    return picture


def _arguments() -> argparse.ArgumentParser:
    parser = command_line(__doc__, "python -m pynative.moe.plot_token_distribution")
    for name, kind, text in (
        ("num-layers", int, "layers of the model"),
        ("hot-expert-num", int, "how many of the hottest experts are printed"),
        ("npy-files-load-path", Path, "directory that holds the files, at any depth"),
        ("save-path-prefix", str, "what the pictures' paths begin with"),
    ):
        parser.add_argument(f"--{name}", f"--{name.replace('-', '_')}", type=kind, required=True, help=text)
    return parser


def main() -> int:
    """Draw the chart of each layer that has counts and print its hottest experts. Exit code 1 if no layer has; exits
    with an error if a layer's files have different numbers of experts."""
    arguments = _arguments().parse_args()
    drawn = 0
    for layer in range(arguments.num_layers):
        try:
            steps, counts = counts_of_layer(arguments.npy_files_load_path, layer)
        except ValueError as error:
            raise SystemExit(f"error: --npy-files-load-path {error}") from None
        if not len(steps):
            continue
        path = Path(f"{arguments.save_path_prefix}layer-{layer}_token_distribution.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(layer, steps, counts).save(path, quality=95)
        print(f"layer {layer}: hot_expert_index {hottest(counts, arguments.hot_expert_num)}, {path}")
        drawn += 1
    if not drawn:
        print(f"--npy-files-load-path {arguments.npy_files_load_path}: no files layer-<l>_<step>.npy are there")
    return 0 if drawn else 1


if __name__ == "__main__":
    raise SystemExit(main())
