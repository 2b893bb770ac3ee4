"""The time of each operator of a GPT layer beside the matrix products that it contains: JSON lines.

    python benchmarks/kernels.py --threads 1 --kernels host --precision bf16 --only layer_norm gelu_tanh

Shapes: hidden 512, 8 heads, feed-forward 2048, sequence 512, micro-batch 4, vocabulary 8192. `matmul_fraction` is the
time that the operator's matrix products would take at the float32 peak of this machine's BLAS, divided by the time it
took. Attention counts the whole s x s square, so skipping the causal half shows as more. With one thread its processor
time counts, which other work on the machine does not change much.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, thread_time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mindspore
import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.context import SequenceLayout
from parallel_core.system.command_line import command_line
from pynative import kernels
from pynative.collectives import Completed
from pynative.kernels.block import AttentionRule
from pynative.kernels.contract.flat_buffers import AdamStep
from pynative.tape.autograd import backward, leaf, recording, take_gradient
from pynative.tensor_parallel.layers import linear_with_grad_accumulation_and_async_allreduce
from pynative.tensor_parallel.mappings import Boundary

SEQUENCE, BATCH, HIDDEN, HEADS, FEED_FORWARD, VOCABULARY = 512, 4, 512, 8, 2048, 8192
HEAD_SIZE, TOKENS = HIDDEN // HEADS, SEQUENCE * BATCH

PRECISIONS = {"fp32": mindspore.float32, "bf16": mindspore.bfloat16, "fp16": mindspore.float16}

_random = np.random.default_rng(0)
_settings = argparse.Namespace(clock=perf_counter, dtype=mindspore.float32)


def normal(*shape: int) -> Tensor:
    """A tensor of random normal numbers in the type that is measured."""
    return normal32(*shape).astype(_settings.dtype)


def normal32(*shape: int) -> Tensor:
    """A tensor of random normal numbers, float32."""
    return from_numpy(_random.standard_normal(shape, np.float32))


def best_seconds(action: Callable[[], object], repeats: int) -> float:
    """Seconds of the shortest of several runs, after one to warm up: longer ones measure the machine's other work,
    too."""
    action()
    durations = []
    for _ in range(repeats):
        start = _settings.clock()
        action()
        durations.append(_settings.clock() - start)
    return min(durations)


def peak_flops(threads: int, repeats: int) -> float:
    """FLOP/s of float32 matrix products on `threads` cores: one core's, measured, times `threads`."""
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
    angles = normal32(SEQUENCE, HEAD_SIZE)
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
        Case("attention", lambda q, k, v: kernels.attention(q, k, v, AttentionRule(scale=scale)), tuple(heads), square),
        Case(
            "attention_dropout",
            lambda q, k, v: kernels.attention(q, k, v, AttentionRule(scale=scale, dropout_rate=0.1, dropout_key=key)),
            tuple(heads),
            square,
        ),
        Case("bias_add", kernels.bias_dropout_add, (hidden, normal(HIDDEN), normal(SEQUENCE, BATCH, HIDDEN))),
        Case(
            "bias_dropout_add",
            lambda x, b, r: kernels.bias_dropout_add(x, b, r, 0.1, key),
            (hidden, normal(HIDDEN), normal(SEQUENCE, BATCH, HIDDEN)),
        ),
        Case("fork", kernels.fork, (hidden,)),
        Case("embedding", lambda w: kernels.embedding(ids, w), (normal(VOCABULARY, HIDDEN),)),
    ]


def _stays(x: Tensor, group: None, async_op: bool = False):
    return Completed(x) if async_op else x


ONE_RANK = Boundary(None, _stays, _stays, SequenceLayout(), context_rank=0)
"""The edge of a tensor-parallel region of one rank, without a job around it."""


def _one_rank_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return linear_with_grad_accumulation_and_async_allreduce(x, weight, bias, ONE_RANK)


def _linear(name: str, x: Tensor, outputs: int) -> Case:
    inputs = x.shape[-1]
    return Case(name, _one_rank_linear, (x, normal(outputs, inputs), normal(outputs)), 2 * TOKENS * inputs * outputs)


def _activation(name: str, x: Tensor) -> Case:
    return Case(name, lambda x, b: kernels.bias_activation(x, b, name), (x, normal(x.shape[-1])))


def measure(case: Case, peak: float, repeats: int) -> dict:
    """The report's line for an operator: milliseconds of forward and backward, and the fraction of them that its matrix
    products would need at `peak` FLOP/s."""
    inputs = [leaf(from_numpy(x.asnumpy().copy())) for x in case.inputs]

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


def sweeps() -> dict[str, Callable[[], object]]:
    """Name -> call of an operator that isn't on the tape: cross entropy's two halves, and a pass of each kind over flat
    buffers."""
    logits, weights = normal(SEQUENCE, BATCH, VOCABULARY), from_numpy(np.full((SEQUENCE, BATCH), 0.5, np.float32))
    target = from_numpy(_random.integers(0, VOCABULARY, (SEQUENCE, BATCH), np.int32))
    added = from_numpy(np.ones((2, SEQUENCE, BATCH), np.float32))
    p, g, m, v = (normal32(4_000_000) for _ in range(4))
    kernels.fill_(v, 0.0)
    adam = AdamStep(learning_rate=1e-4, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1, step=3)
    return {
        "softmax_statistics": lambda: kernels.softmax_statistics(logits, target, 0),
        "cross_entropy_gradient": lambda: kernels.cross_entropy_gradient(
            logits, weights, added, target, 0, weights, True
        ),
        "adam_ of 4M": lambda: kernels.adam_(p, g, m, v, adam),
        "squared_norm of 4M": lambda: kernels.squared_norm(g),
        "add_ of 4M": lambda: kernels.add_(m, g),
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the host kernels")
    parser.add_argument("--kernels", choices=("host", "ops"), default="host", help="implementation")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32", help="type of the tensors")
    parser.add_argument("--only", nargs="*", help="names of the operators to measure (default: all)")
    parser.add_argument("--repeats", type=int, default=5, help="runs of which the shortest counts")
    arguments = parser.parse_args()
    mindspore.set_device("CPU")
    mindspore.runtime.launch_blocking()
    kernels.use(arguments.kernels, threads=arguments.threads)
    _settings.dtype = PRECISIONS[arguments.precision]
    _settings.clock = thread_time if arguments.threads == 1 else perf_counter
    setting = {name: getattr(arguments, name) for name in ("kernels", "threads", "precision")}
    peak = peak_flops(arguments.threads, arguments.repeats)
    for case in cases():
        if not arguments.only or case.name in arguments.only:
            print(json.dumps({**setting, **measure(case, peak, arguments.repeats)}), flush=True)
    for name, action in sweeps().items():
        if not arguments.only or name in arguments.only:
            row = {"operator": name, "ms": round(best_seconds(action, arguments.repeats) * 1e3, 2)}
            print(json.dumps({**setting, **row}), flush=True)


if __name__ == "__main__":
    main()
