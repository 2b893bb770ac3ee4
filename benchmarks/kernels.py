"""How close each operator of a GPT layer comes to the matrix products that it contains: JSON lines.

    python benchmarks/kernels.py --threads 2 --kernels host
    python benchmarks/kernels.py --step          # a whole model's forward, backward and Adam instead

Shapes: hidden 512, 8 heads, feed-forward 2048, sequence 512, micro-batch 4, vocabulary 8192, float32. `matmul_fraction`
is the time that the operator's matrix products would take at the machine's own peak, divided by the time it took.
Attention counts the whole s x s square, so skipping the causal half shows as more.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, from_numpy

from pynative import kernels
from pynative.autograd import backward, collect_gradients, leaf, recording, take_gradient

SEQUENCE, BATCH, HIDDEN, HEADS, FEED_FORWARD, VOCABULARY, LAYERS = 512, 4, 512, 8, 2048, 8192, 8
HEAD_SIZE, TOKENS = HIDDEN // HEADS, SEQUENCE * BATCH

_random = np.random.default_rng(0)


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    return from_numpy(_random.standard_normal(shape, np.float32) * np.float32(scale))


def best_seconds(action: Callable[[], object], repeats: int) -> float:
    """The shortest of several runs, after one to warm up: the others measure the machine's other work."""
    action()
    durations = []
    for _ in range(repeats):
        start = perf_counter()
        action()
        durations.append(perf_counter() - start)
    return min(durations)


def peak_flops(threads: int, repeats: int) -> float:
    """Multiply and add operations a second of float32 matrix products on `threads` cores: one core's times threads."""
    a, b, out = (np.ones(shape, np.float32) for shape in ((2048, 512), (512, 2048), (2048, 2048)))
    return threads * 2 * 2048 * 512 * 2048 / best_seconds(lambda: np.matmul(a, b, out=out), repeats)


@dataclass
class Case:
    """An operator on its inputs, and the floating-point operations of its forward matrix products."""

    name: str
    function: Callable[..., object]
    inputs: tuple[Tensor, ...]
    flops: int = 0


def cases() -> list[Case]:
    hidden, wide = normal(SEQUENCE, BATCH, HIDDEN), normal(SEQUENCE, BATCH, FEED_FORWARD)
    heads = [normal(SEQUENCE, BATCH, HEADS, HEAD_SIZE) for _ in range(3)]
    angles = normal(SEQUENCE, HEAD_SIZE)
    square = 4 * SEQUENCE * TOKENS * HIDDEN
    ids = from_numpy(_random.integers(0, VOCABULARY, (BATCH, SEQUENCE), np.int32))
    key, scale = (1, 2), HEAD_SIZE**-0.5
    return [
        _linear("linear_qkv", hidden, 3 * HIDDEN),
        _linear("linear_fc1", hidden, FEED_FORWARD),
        _linear("linear_fc2", wide, HIDDEN),
        Case("layer_norm", lambda x, w, b: kernels.layer_norm(x, w, b, 1e-5), (hidden, normal(HIDDEN), normal(HIDDEN))),
        Case("rms_norm", lambda x, w: kernels.rms_norm(x, w, 1e-5), (hidden, normal(HIDDEN))),
        *(_activation(name, wide) for name in ("gelu_tanh", "gelu_erf", "swiglu", "squared_relu")),
        Case("split_qkv", lambda x: kernels.split_qkv(x, HEADS, 1, HEAD_SIZE), (normal(SEQUENCE, BATCH, 3 * HIDDEN),)),
        Case("rotary", lambda x: kernels.rotary(x, angles, angles), (heads[0],)),
        Case("attention", lambda q, k, v: kernels.attention(q, k, v, scale=scale), tuple(heads), square),
        Case(
            "attention_dropout",
            lambda q, k, v: kernels.attention(q, k, v, scale=scale, dropout_rate=0.1, dropout_key=key),
            tuple(heads),
            square,
        ),
        Case("bias_add", kernels.bias_dropout_add, (hidden, normal(HIDDEN), hidden * 2.0)),
        Case(
            "bias_dropout_add",
            lambda x, b, r: kernels.bias_dropout_add(x, b, r, 0.1, key),
            (hidden, normal(HIDDEN), hidden * 2.0),
        ),
        Case("embedding", lambda w: kernels.embedding(ids, w), (normal(VOCABULARY, HIDDEN),)),
    ]


def _linear(name: str, x: Tensor, outputs: int) -> Case:
    inputs = x.shape[-1]
    return Case(name, kernels.linear, (x, normal(outputs, inputs), normal(outputs)), 2 * TOKENS * inputs * outputs)


def _activation(name: str, x: Tensor) -> Case:
    return Case(name, lambda x, b: kernels.bias_activation(x, b, name), (x, normal(x.shape[-1])))


def measure(case: Case, peak: float, repeats: int) -> dict:
    """Seconds of forward and backward, and the fraction that matrix products alone would need."""
    inputs = [leaf(x * 1.0) for x in case.inputs]

    def forward() -> tuple[Tensor, ...]:
        with recording():
            # A gradient that is shared with another leaf would be cloned, which a CPU has no kernel for.
            result = case.function(*(x if kernels.active() == "host" else x * 1.0 for x in inputs))
        return result if isinstance(result, tuple) else (result,)

    outputs = forward()
    gradients = tuple(normal(*y.shape) for y in outputs)
    forward_seconds = best_seconds(forward, repeats)

    def there_and_back() -> None:
        backward(forward(), gradients)
        for x in inputs:
            take_gradient(x)

    backward_seconds = best_seconds(there_and_back, repeats) - forward_seconds
    backward_flops = case.flops * (2.5 if case.name.startswith("attention") else 2)
    return {
        "operator": case.name,
        "forward_ms": round(forward_seconds * 1e3, 2),
        "backward_ms": round(backward_seconds * 1e3, 2),
        "forward_matmul_fraction": round(case.flops / peak / forward_seconds, 3),
        "backward_matmul_fraction": round(backward_flops / peak / backward_seconds, 3),
    }


def measure_sweeps(repeats: int) -> list[dict]:
    """Operators that aren't on the tape: cross entropy's two halves, and a pass of each kind over flat buffers."""
    logits, weights = normal(SEQUENCE, BATCH, VOCABULARY), from_numpy(np.full((SEQUENCE, BATCH), 0.5, np.float32))
    target = from_numpy(_random.integers(0, VOCABULARY, (SEQUENCE, BATCH), np.int32))
    exponentials = normal(SEQUENCE, BATCH, VOCABULARY)
    p, g, m, v = (normal(4_000_000) for _ in range(4))
    kernels.scale_(v, 0.0)
    adam = {"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1}
    actions: dict[str, Callable[[], object]] = {
        "softmax_statistics": lambda: kernels.softmax_statistics(logits, target, 0),
        "cross_entropy_gradient": lambda: kernels.cross_entropy_gradient(exponentials, weights, target, 0, weights),
        "adamw_ of 4M": lambda: kernels.adamw_(p, g, m, v, step=3, **adam),
        "squared_norm of 4M": lambda: kernels.squared_norm(g),
        "is_finite of 4M": lambda: kernels.is_finite(g),
        "scale_ of 4M": lambda: kernels.scale_(g, 1.0),
        "add_ of 4M": lambda: kernels.add_(m, g),
    }
    return [{"operator": name, "ms": round(best_seconds(f, repeats) * 1e3, 2)} for name, f in actions.items()]


# A whole model, without parallelism ----------------------------------------------------------------------------------


class FlatParameters:
    """Parameters over one flat buffer, their gradients over another: what a training core keeps for the optimizer."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        sizes = {name: int(np.prod(shape)) for name, shape in shapes.items()}
        self.values, self.gradients, self.average, self.square = np.zeros((4, sum(sizes.values())), np.float32)
        self.flat = [from_numpy(a) for a in (self.values, self.gradients, self.average, self.square)]
        self.by_name, start = {}, 0
        for name, shape in shapes.items():
            piece = slice(start, start + sizes[name])
            self.values[piece] = 1.0 if "norm" in name else _random.standard_normal(sizes[name], np.float32) * 0.02
            self.by_name[name] = self._parameter(name, piece, shape)
            start = piece.stop

    def _parameter(self, name: str, piece: slice, shape: tuple[int, ...]) -> Parameter:
        parameter = Parameter(from_numpy(self.values[piece].reshape(shape)), name=name)
        parameter.set_data(from_numpy(self.values[piece].reshape(shape)))
        parameter.main_grad = from_numpy(self.gradients[piece].reshape(shape))
        parameter.main_grad_is_empty = True
        return parameter

    def update(self, step: int) -> None:
        collect_gradients(self.by_name.values())
        norm = kernels.squared_norm(self.flat[1]) ** 0.5
        kernels.adamw_(
            *self.flat, learning_rate=1e-4, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1, step=step,
            grad_scale=min(1.0, 1.0 / (norm + 1e-6)),
        )  # fmt: skip
        for parameter in self.by_name.values():
            parameter.main_grad_is_empty = True


def gpt_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"word": (VOCABULARY, HIDDEN), "position": (SEQUENCE, HIDDEN)}
    for layer in range(LAYERS):
        shapes |= {
            f"{layer}.norm1": (HIDDEN,), f"{layer}.shift1": (HIDDEN,),
            f"{layer}.qkv": (3 * HIDDEN, HIDDEN), f"{layer}.qkv_bias": (3 * HIDDEN,),
            f"{layer}.proj": (HIDDEN, HIDDEN), f"{layer}.proj_bias": (HIDDEN,),
            f"{layer}.norm2": (HIDDEN,), f"{layer}.shift2": (HIDDEN,),
            f"{layer}.fc1": (FEED_FORWARD, HIDDEN), f"{layer}.fc1_bias": (FEED_FORWARD,),
            f"{layer}.fc2": (HIDDEN, FEED_FORWARD), f"{layer}.fc2_bias": (HIDDEN,),
        }  # fmt: skip
    return shapes | {"norm": (HIDDEN,), "shift": (HIDDEN,)}


def gpt_layer(x: Tensor, layer: int, p: dict[str, Parameter]) -> Tensor:
    def of(name: str) -> Parameter:
        return p[f"{layer}.{name}"]

    normed = kernels.layer_norm(x, of("norm1"), of("shift1"), 1e-5)
    q, k, v = kernels.split_qkv(kernels.linear(normed, of("qkv"), of("qkv_bias")), HEADS, 1, HEAD_SIZE)
    attended = kernels.attention(q, k, v, scale=HEAD_SIZE**-0.5)
    x = kernels.bias_dropout_add(kernels.linear(attended, of("proj")), of("proj_bias"), x)
    normed = kernels.layer_norm(x, of("norm2"), of("shift2"), 1e-5)
    wide = kernels.bias_activation(kernels.linear(normed, of("fc1")), of("fc1_bias"), "gelu_tanh")
    return kernels.bias_dropout_add(kernels.linear(wide, of("fc2")), of("fc2_bias"), x)


def gpt_step(parameters: FlatParameters, ids: Tensor, target: Tensor, step: int) -> float:
    """One training step; the mean loss."""
    p = parameters.by_name
    positions = from_numpy(np.broadcast_to(np.arange(SEQUENCE, dtype=np.int32), (BATCH, SEQUENCE)).copy())
    with recording():
        embedded = kernels.embedding(ids, p["word"]) + kernels.embedding(positions, p["position"])
        x = embedded.transpose(1, 0, 2)
        for layer in range(LAYERS):
            x = gpt_layer(x, layer, p)
        logits = kernels.linear(kernels.layer_norm(x, p["norm"], p["shift"], 1e-5), p["word"])
        exponentials, maximum, total, target_logit = kernels.softmax_statistics(logits, target)
        loss = np.log(total.asnumpy()) + maximum.asnumpy() - target_logit.asnumpy()
        scale = from_numpy(1 / total.asnumpy() / TOKENS)
        weight = from_numpy(np.full(loss.shape, 1 / TOKENS, np.float32))
        gradient = kernels.cross_entropy_gradient(exponentials, scale, target, 0, weight)
        backward((logits,), (gradient,))
    parameters.update(step)
    return float(loss.mean())


def measure_step(peak: float, repeats: int) -> dict:
    """Model FLOP/s as a fraction of the peak: 6 x matrix parameters x tokens + 12 x layers x s x h x tokens."""
    shapes = gpt_shapes()
    parameters = FlatParameters(shapes)
    ids = from_numpy(_random.integers(0, VOCABULARY, (BATCH, SEQUENCE), np.int32))
    target = from_numpy(np.ascontiguousarray(ids.asnumpy().T))
    losses: list[float] = []
    seconds = best_seconds(lambda: losses.append(gpt_step(parameters, ids, target, len(losses) + 1)), repeats)
    matrices = sum(int(np.prod(s)) for name, s in shapes.items() if len(s) == 2 and name != "position")
    flops = 6 * matrices * TOKENS + 12 * LAYERS * SEQUENCE * HIDDEN * TOKENS
    return {
        "step_ms": round(seconds * 1e3, 1),
        "gflops": round(flops / seconds / 1e9, 1),
        "peak_gflops": round(peak / 1e9, 1),
        "fraction_of_peak": round(flops / seconds / peak, 3),
        "losses": [round(loss, 4) for loss in losses],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the host kernels")
    parser.add_argument("--kernels", choices=("host", "ops"), default="host", help="implementation")
    parser.add_argument("--repeats", type=int, default=5, help="runs of which the shortest counts")
    parser.add_argument("--step", action="store_true", help="measure a whole training step")
    arguments = parser.parse_args()
    mindspore.set_device("CPU")
    mindspore.runtime.launch_blocking()
    kernels.use(arguments.kernels, threads=arguments.threads)
    setting = {"kernels": arguments.kernels, "threads": arguments.threads}
    peak = peak_flops(arguments.threads, arguments.repeats)
    if arguments.step:
        print(json.dumps({**setting, **measure_step(peak, arguments.repeats)}))
        return
    for case in cases():
        print(json.dumps({**setting, **measure(case, peak, arguments.repeats)}), flush=True)
    for row in measure_sweeps(arguments.repeats):
        print(json.dumps({**setting, **row}), flush=True)


if __name__ == "__main__":
    main()
