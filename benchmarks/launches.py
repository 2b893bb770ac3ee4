"""The least that MindSpore's operators cost a step on a CPU: what a GPT's layers launch, and nothing of ours around it.

    python benchmarks/launches.py --layers 24 --hidden 64 --heads 4 --seq 32

The operators are those of `--kernels ops` (`benchmarks/operators.py` counts them), forward and backward, without tape,
cells, delivery of gradients, embedding, head and optimizer. Prints one line of JSON: milliseconds of processor time of
the calling thread a step, the least and the middle of several.
"""

import argparse
import json
import statistics
import sys
from functools import partial
from pathlib import Path
from time import thread_time

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mindspore import Tensor, ops
from mindspore.ops.auto_generate.gen_ops_prim import SoftmaxBackward
from mindspore.ops.operations import _grad_ops

from parallel_core.command_line import command_line
from pynative import device

Saved = dict[str, Tensor]

product, with_transposed, of_transposed = ops.MatMul(), ops.MatMul(transpose_b=True), ops.MatMul(transpose_a=True)
products, with_transposed_each, of_transposed_each = (
    ops.BatchMatMul(),
    ops.BatchMatMul(transpose_b=True),
    ops.BatchMatMul(transpose_a=True),
)
layer_norm, layer_norm_gradient = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1), _grad_ops.LayerNormGrad()
gelu, gelu_gradient = ops.GeLU(), _grad_ops.GeLUGrad()
# Its own call looks for a kind of kernel that a CPU has none of.
softmax_gradient = partial(ops.Primitive.__call__, SoftmaxBackward())


def parse() -> argparse.Namespace:
    """The command line."""
    parser = command_line(__doc__)
    for name, default in {"layers": 24, "hidden": 64, "heads": 4, "seq": 32, "runs": 15}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=name)
    return parser.parse_args()


class Layer:
    """One layer of one sequence: LayerNorm, biases, GeLU, causal attention without positions."""

    def __init__(self, options: argparse.Namespace, seed: int) -> None:
        self.rng, h = np.random.default_rng(seed), options.hidden
        self.seq, self.heads, self.mask = options.seq, options.heads, Tensor(~np.tri(options.seq, dtype=bool))
        self.qkv, self.projection, self.up, self.down = map(self.made, ((3 * h, h), (h, h), (4 * h, h), (h, 4 * h)))
        self.biases = [self.made((size,)) for size in (3 * h, h, 4 * h, h)]
        self.norms = [(self.made((h,)), self.made((h,))) for _ in range(2)]
        self.saved: Saved = {}

    def made(self, shape: tuple[int, ...]) -> Tensor:
        """A tensor of small numbers."""
        return Tensor.from_numpy(self.rng.standard_normal(shape, np.float32) * np.float32(0.1))

    def heads_of(self, x: Tensor) -> Tensor:
        """[s, h] -> [1, n, s, d], no view."""
        return x.reshape(self.seq, 1, self.heads, -1).permute(1, 2, 0, 3).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """[s, h] -> [s, h]."""
        normed, mean, variance = layer_norm(x, *self.norms[0])
        fused = ops.add(with_transposed(normed, self.qkv), self.biases[0]).reshape(self.seq, 1, self.heads, 3, -1)
        q, k, v = (self.heads_of(fused.narrow(-2, part, 1)) for part in range(3))
        q = ops.mul(q, 0.25)
        scores = ops.masked_fill(with_transposed_each(q, k), self.mask, -10000.0)
        p = ops.softmax(scores, -1)
        attended = products(p, v).permute(2, 0, 1, 3).reshape(self.seq, -1)
        y = ops.add(x, ops.add(with_transposed(attended, self.projection), self.biases[1]))
        normed2, mean2, variance2 = layer_norm(y, *self.norms[1])
        raised = ops.add(with_transposed(normed2, self.up), self.biases[2])
        active = gelu(raised)
        self.saved = {
            "x": x, "normed": normed, "mean": mean, "variance": variance, "q": q, "k": k, "v": v, "p": p,
            "attended": attended, "y": y, "normed2": normed2, "mean2": mean2, "variance2": variance2,
            "raised": raised, "active": active,
        }  # fmt: skip
        return ops.add(y, ops.add(with_transposed(active, self.down), self.biases[3]))

    def backward(self, dz: Tensor) -> Tensor:
        """Gradient of what `forward` gave -> of what it took; those of the weights are computed and dropped."""
        saved = argparse.Namespace(**self.saved)
        dactive, _, _ = self.linear(dz, saved.active, self.down)
        draised = gelu_gradient(dactive, saved.raised, saved.active)
        dnormed, _, _ = self.linear(draised, saved.normed2, self.up)
        dy, _, _ = layer_norm_gradient(dnormed, saved.y, saved.variance2, saved.mean2, self.norms[1][0])
        dy = ops.add(dy, dz)
        dattended, _, _ = self.linear(dy, saved.attended, self.projection)
        dfused = self.attention_gradient(self.heads_of(dattended), saved)
        dnormed, _, _ = self.linear(dfused, saved.normed, self.qkv)
        dx, _, _ = layer_norm_gradient(dnormed, saved.x, saved.variance, saved.mean, self.norms[0][0])
        return ops.add(dx, dy)

    @staticmethod
    def linear(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of a linear's input, weight and bias."""
        return product(dy, weight), of_transposed(dy, x), dy.sum(axis=0)

    def attention_gradient(self, dout: Tensor, saved: argparse.Namespace) -> Tensor:
        """Of attention's output, heads first -> of the fused rows of queries, keys and values."""
        dp, dv = with_transposed_each(dout, saved.v), of_transposed_each(saved.p, dout)
        dscores = softmax_gradient(dp, saved.p, -1)
        dq, dk = ops.mul(products(dscores, saved.k), 0.25), of_transposed_each(dscores, saved.q)
        parts = [g.permute(2, 0, 1, 3).reshape(self.seq, 1, self.heads, 1, -1) for g in (dq, dk, dv)]
        return ops.cat(parts, -2).reshape(self.seq, -1)


def step(layers: list[Layer], x: Tensor) -> None:
    """Forward and backward of all layers."""
    for layer in layers:
        x = layer.forward(x)
    for layer in reversed(layers):
        x = layer.backward(x)


def main() -> None:
    """Measure and print."""
    options = parse()
    device.initialize("CPU", "ops", threads=1, world_size=1)
    layers = [Layer(options, seed) for seed in range(options.layers)]
    x, times = layers[0].made((options.seq, options.hidden)), []
    for _ in range(options.runs + 3):
        started = thread_time()
        step(layers, x)
        times.append(1e3 * (thread_time() - started))
    measured = times[3:]
    print(json.dumps({"least_ms": round(min(measured), 1), "median_ms": round(statistics.median(measured), 1)}))


if __name__ == "__main__":
    main()
