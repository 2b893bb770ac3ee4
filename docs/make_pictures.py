"""Draw the pictures of docs/images that explain how ranks work together.

PYTHONPATH=. python docs/make_pictures.py
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mapping.plan import main as plan
from parallel_core.buffers.slots import slot_of
from parallel_core.context import ring_block

IMAGES = Path(__file__).resolve().parent / "images"

COLOURS = {
    "forward": "#8ab6e8",
    "backward": "#8fce9a",
    "message": "#f2c879",
    "light": "#dcdcdc",
    "a": "#8ab6e8",
    "b": "#f2c879",
}
WIDTH, HEIGHT, MARGIN = 62, 26, 150


class Box(NamedTuple):
    """A rectangle of a row: start and length in units of time, a text, and a colour's name."""

    start: float
    length: float
    text: str
    colour: str


def grid(rows: Sequence[tuple[str, Sequence[Box]]], title: str, heads: Sequence[str] = ()) -> str:
    """An SVG of rows of boxes below a title, and heads over each unit of time."""
    units = max(box.start + box.length for _, boxes in rows for box in boxes)
    top = 52 if heads else 34
    width, height = MARGIN + units * WIDTH + 10, top + len(rows) * (HEIGHT + 8) + 6
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" font-family="sans-serif" '
        f'font-size="12"><title>{title}</title>',
        f'<rect width="{width:g}" height="{height:g}" fill="white"/>',
        f'<text x="8" y="20" font-size="13" font-weight="bold">{title}</text>',
    ]
    for number, head in enumerate(heads):
        lines.append(f'<text x="{MARGIN + (number + 0.5) * WIDTH:g}" y="44" text-anchor="middle">{head}</text>')
    for number, (name, boxes) in enumerate(rows):
        y = top + number * (HEIGHT + 8)
        lines.append(f'<text x="8" y="{y + 17}">{name}</text>')
        for box in boxes:
            x, length = MARGIN + box.start * WIDTH, box.length * WIDTH - 3
            lines.append(
                f'<rect x="{x:g}" y="{y}" width="{length:g}" height="{HEIGHT}" rx="3" fill="{COLOURS[box.colour]}"/>'
                f'<text x="{x + length / 2:g}" y="{y + 17}" text-anchor="middle">{box.text}</text>'
            )
    return "\n".join([*lines, "</svg>", ""])


def overlap(layers: int = 4) -> str:
    """Each layer's gradients are reduced while the layers before it compute their backward."""
    backward = [Box(turn, 1, f"layer {layers - 1 - turn}", "backward") for turn in range(layers)]
    reduces = [Box(turn + 1, 0.9, f"bucket {layers - 1 - turn}", "message") for turn in range(layers)]
    update = Box(layers + 1, 1, "update", "light")
    after = [Box(layers + turn, 0.9, f"bucket {turn}", "message") for turn in range(layers)]
    rows = [
        ("with overlap: computes", [*backward, update]),
        ("reduces", reduces),
        ("without: computes", [*backward, Box(2 * layers, 1, "update", "light")]),
        ("reduces", after),
    ]
    return grid(rows, "--overlap-grad-reduce")


def slots(cells: int = 5) -> str:
    """Weights of the next cell arrive in one slot while the cell that is at work reads another."""
    names = ["embedding", *(f"layer {number}" for number in range(cells - 2)), "head"]
    rows: dict[int, list[Box]] = {slot: [] for slot in sorted({slot_of(cell, cells) for cell in range(cells)})}
    for cell in range(cells):
        rows[slot_of(cell, cells)] += [
            Box(2 * cell, 1.9, f"gather {names[cell]}", "message"),
            Box(2 * cell + 2, 1.9, names[cell], "forward"),
        ]
    title = "--zero-stage 3, forward: a slot is arriving (gather), then whole (its cell computes)"
    return grid([(f"slot {slot}", boxes) for slot, boxes in rows.items()], title)


def ring(size: int = 4) -> str:
    """Rank r has the keys of rank r - step; of the sequence each rank has an early and a late part."""
    rows = []
    for rank in range(size):
        boxes = []
        for step in range(size):
            source = (rank - step) % size
            block = ring_block(rank, source)
            queries, keys = "all" if block.query_chunks == 2 else "late", "all" if block.key_chunks == 2 else "early"
            text = "own keys, causal" if block.causal else f"{queries} queries x {keys} keys of {source}"
            boxes.append(Box(3 * step, 2.95, text, "forward" if block.causal else "b"))
        rows.append((f"rank {rank}", boxes))
    heads = [head for step in range(size) for head in ("", f"step {step}", "")]
    return grid(rows, "Ring attention over 4 ranks: keys and values move to the next rank after each step", heads)


def dispatch() -> str:
    """Rows of two ranks' tokens travel to the ranks of their experts and back."""
    stages = [("sort by expert", "light"), ("all-to-all", "message"), ("experts", "forward")]
    stages += [("all-to-all", "message"), ("sum", "light")]
    own = {0: "0 1", 1: "2 3"}
    rows = []
    for rank in range(2):
        texts = ["tokens by expert", "rows out", f"experts {own[rank]}", "rows back", "tokens"]
        boxes = [Box(2 * n, 1.9, text, colour) for n, (text, (_, colour)) in enumerate(zip(texts, stages, strict=True))]
        rows.append((f"rank {rank}", boxes))
    heads = [head for name, _ in stages for head in (name, "")]
    return grid(rows, "Four experts over two ranks", heads)


STEP = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
    "--micro-batch-size 1 --global-batch-size 8 --lr 1e-4 --train-iters 10 --vocab-size 32000 --bf16 "
    "--tokenizer-type NullTokenizer --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 "
    "--sequence-parallel --pipeline-schedule zb-h1"
)
"""The run whose planned step README shows."""

if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for draw in (overlap, slots, ring, dispatch):
        (IMAGES / f"{draw.__name__}.svg").write_text(draw(), encoding="utf-8")
    plan(["--world-size", "32", "--device", "A100", "--draw", str(IMAGES / "step.svg"), "--", *STEP.split()])
