"""`python -m pynative.moe.plot_token_distribution`: a picture of each layer's tokens per expert over the steps.

Reads what --save-token-distribution wrote and draws, for each layer, the experts' counts stacked over the steps into
<prefix>layer-<l>_token_distribution.svg; and prints the experts of the last step that got most.
"""

import argparse
import re
from pathlib import Path

import numpy as np

LEFT, TOP, WIDTH, HEIGHT = 80, 40, 640, 360
"""Pixels: margins and size of the chart."""
_FILE = re.compile(r"layer-(\d+)_(\d+)\.npy")


def counts_of_layer(directory: Path, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """(steps [n], tokens [n, E]) of a layer, in the order of steps, from everywhere below a directory."""
    found = {int(match[2]): path for path in directory.rglob("*.npy") if (match := _FILE.fullmatch(path.name))
             and int(match[1]) == layer}  # fmt: skip
    steps = sorted(found)
    return np.array(steps), np.array([np.load(found[step], allow_pickle=False) for step in steps])


def hottest(counts: np.ndarray, number: int) -> list[int]:
    """The experts of the last step that got most tokens, most first."""
    return np.argsort(-counts[-1], kind="stable")[:number].tolist()


def _colour(expert: int, number: int) -> str:
    return f"hsl({round(360 * expert / number)}, 60%, {60 + 15 * (expert % 2)}%)"


def _areas(steps: np.ndarray, counts: np.ndarray) -> list[str]:
    """A band of the chart for each expert, on top of those before it."""
    span, highest = max(int(steps[-1] - steps[0]), 1), max(counts.sum(axis=1).max(), 1)
    x = LEFT + WIDTH * (steps - steps[0]) / span
    if len(steps) == 1:
        x, counts = np.array([LEFT, LEFT + WIDTH]), np.repeat(counts, 2, axis=0)
    edges = np.concatenate([np.zeros((len(counts), 1)), counts.cumsum(axis=1)], axis=1)
    y = TOP + HEIGHT * (1 - edges / highest)
    bands = []
    for expert in range(counts.shape[1]):
        outline = [*zip(x, y[:, expert], strict=True), *reversed([*zip(x, y[:, expert + 1], strict=True)])]
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in outline)
        title = f"<title>expert {expert}: {counts[-1, expert]} at the last step</title>"
        bands.append(f'<polygon fill="{_colour(expert, counts.shape[1])}" points="{points}">{title}</polygon>')
    return bands


def draw(layer: int, steps: np.ndarray, counts: np.ndarray) -> str:
    """The picture of a layer as SVG."""
    bottom, highest = TOP + HEIGHT, int(counts.sum(axis=1).max())
    texts = [
        (LEFT + WIDTH / 2, TOP - 15, "middle", f"Layer-{layer}_Token_Distribution"),
        (LEFT + WIDTH / 2, bottom + 35, "middle", "num of step"),
        (10, TOP - 15, "start", "num of token"),
        (LEFT, bottom + 16, "middle", str(steps[0])),
        (LEFT + WIDTH, bottom + 16, "middle", str(steps[-1])),
        (LEFT - 6, TOP + 5, "end", str(highest)),
        (LEFT - 6, bottom, "end", "0"),
    ]
    labels = [f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{text}</text>' for x, y, anchor, text in texts]
    size = f'width="{LEFT + WIDTH + 30}" height="{bottom + 50}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">'
    frame = f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="black"/>'
    return "\n".join([head, *_areas(steps, counts), frame, *labels, "</svg>\n"])


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, kind, text in (
        ("num-layers", int, "layers of the model"),
        ("hot-expert-num", int, "how many of the hottest experts are printed"),
        ("npy-files-load-path", Path, "directory that holds the files, at any depth"),
        ("save-path-prefix", str, "what the pictures' paths begin with"),
    ):
        parser.add_argument(f"--{name}", f"--{name.replace('-', '_')}", type=kind, required=True, help=text)
    return parser


def main() -> int:
    """Draw and print; 1 if there are no counts."""
    arguments = _arguments().parse_args()
    drawn = 0
    for layer in range(arguments.num_layers):
        steps, counts = counts_of_layer(arguments.npy_files_load_path, layer)
        if not len(steps):
            continue
        path = Path(f"{arguments.save_path_prefix}layer-{layer}_token_distribution.svg")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(draw(layer, steps, counts), encoding="utf-8")
        print(f"layer {layer}: hot_expert_index {hottest(counts, arguments.hot_expert_num)}, {path}")
        drawn += 1
    if not drawn:
        print(f"--npy-files-load-path {arguments.npy_files_load_path}: no files layer-<l>_<step>.npy are there")
    return 0 if drawn else 1


if __name__ == "__main__":
    raise SystemExit(main())
