"""Buckets in time: their sums inside the backward, their gathers inside the forward, and the same bits as without."""

import time
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest

from parallel_core.config.gradient import GradientConfig
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.layouts import Rows, Trained, train
from tests.support.pipelines import pipeline
from tests.support.pretraining import pretrain_tiny

MODEL = (
    f"{TINY} --num-layers 4 --global-batch-size 8 --train-iters 2 --clip-grad 0 --untie-embeddings-and-output-weights"
)
BUCKETS = "--overlap-grad-reduce --ddp-bucket-size 8000"
SHARDED = "--use-distributed-optimizer"
GATHERS = f"{SHARDED} {BUCKETS} --overlap-param-gather"
INTERLEAVED = pipeline("interleaved", 2)
CASES = {
    "plain": (2, "", BUCKETS),
    "accumulated": (2, "--micro-batch-size 1 --hidden-dropout 0.1", BUCKETS),
    "16 bits, averaged": (2, "--fp16 --loss-scale 64", f"{BUCKETS} {SHARDED}"),
    "recomputed": (2, "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2", BUCKETS),
    "gathers": (2, SHARDED, GATHERS),
    "gathers bf16": (2, f"{SHARDED} --bf16", GATHERS),
    "aligned": (2, SHARDED, f"{GATHERS} --enable-mem-align"),
    "ops": (2, "--kernels ops", GATHERS),
    "cp2": (2, "--context-parallel-size 2", GATHERS),
    "1f1b": (4, pipeline("1f1b", 2), GATHERS),
    "1f1b delayed": (4, pipeline("1f1b", 2), f"{BUCKETS} --delay-grad-reduce"),
    "interleaved": (4, INTERLEAVED, GATHERS),
    "zb-h1": (4, pipeline("zb-h1", 2), GATHERS),
}


@cache
def plain_run(world: int, flags: str) -> Trained:
    """Outcome of a run without overlap, computed once for all cases that compare with it."""
    return run(world, train, f"{MODEL} {flags}")[0]


@pytest.mark.parametrize("case", CASES)
def test_the_bits_are_those_without_overlap(case):
    """Losses, gradients and weights are the same sums of the same addends. Without clipping, since the norm is added up
    bucket by bucket."""
    world, flags, overlapped = CASES[case]
    plain = plain_run(world, flags)
    found, *_ = run(world, train, f"{MODEL} {flags} {overlapped}")
    assert found.losses == plain.losses
    np.testing.assert_allclose(found.gradient_norms, plain.gradient_norms, rtol=1e-6)
    for arrays, wanted in ((found.gradients, plain.gradients), (found.final, plain.final)):
        assert [name for name in wanted if not np.array_equal(arrays[name], wanted[name])] == []


def traced(backend, flags: str) -> list[dict]:
    """For each step a dict: times "forward", "backward" and "end" of the chunk's last event of the kind, intervals of
    "reduce_scatter" and "all_gather" so far, number of "observers"."""
    from pynative import parallel_state
    from pynative.tape.layer_events import LayerEvents
    from pynative.training.callbacks import Callback

    steps: list[dict] = []

    class Watch(Callback):
        reads_parameters = False

        def on_train_begin(self, state):
            self.events = LayerEvents.of(state.model[0])
            self.events.on("before_forward", lambda cell: self._note("forward", cell))
            self.events.on("before_backward", lambda cell: self._note("backward", cell))
            self.events.on("after_backward", lambda cell: self._note("end", cell))
            backend.trace.reset()
            backend.trace.keeps_intervals = True
            steps.append({})

        def _note(self, what, cell):
            if cell is self.events.chunk:
                steps[-1][what] = time.perf_counter()

        def on_step_end(self, state):
            group = parallel_state.get_group("dp").name
            counts = {op: backend.trace.of(group, op) for op in ("reduce_scatter", "all_gather")}
            steps[-1]["observers"] = sum(map(len, self.events._observers.values()))
            for op, count in counts.items():
                steps[-1][op] = [tuple(interval) for interval in count.intervals]
            steps.append({})

        def on_train_end(self, state):
            backend.trace.keeps_intervals = False
            backend.trace.reset()

    # the plan's comparison would end what these counts keep alive
    with patch("pynative.training.callbacks.beside.is_planned", lambda *_: False):
        pretrain_tiny(backend, flags, callbacks=[Watch()])
    return steps[:-1]


DEEP = f"{MODEL} --num-layers 8 --hidden-size 64 --ffn-hidden-size 512 --global-batch-size 4 --train-iters 4"
DEEP_BUCKETS = "--overlap-grad-reduce --ddp-bucket-size 60000"


def sums_of_steps(steps: list[dict]) -> list[tuple[dict, list]]:
    """[(step, intervals (start, end) of the reduce-scatters that were issued in it)] of `traced`."""
    ends = [0, *(len(step["reduce_scatter"]) for step in steps)]
    return [(step, step["reduce_scatter"][ends[i] :]) for i, step in enumerate(steps)]


def test_reductions_lie_inside_the_backward():
    """With --overlap-grad-reduce each reduce-scatter but the embedding bucket's starts before the last backward ends,
    some end before it (the machine's load decides), and observers do not grow from step to step."""
    for steps in run(2, traced, f"{DEEP} {DEEP_BUCKETS} {SHARDED}"):
        assert len({step["observers"] for step in steps}) == 1
        ended = 0
        for step, sums in sums_of_steps(steps):
            assert len(sums) > 6 and all(step["backward"] < start < step["end"] for start, _ in sums[:-1])
            ended += sum(stop < step["end"] for _, stop in sums)
        assert ended > 0


def test_without_the_flag_they_follow_it():
    """Without --overlap-grad-reduce all reduce-scatters start after the last backward: the flag makes the test above
    pass."""
    for step, sums in sums_of_steps(run(2, traced, f"{DEEP} {SHARDED}")[0]):
        assert len(sums) > 0 and all(step["end"] < start for start, _ in sums)


def test_gathers_lie_inside_the_forward():
    """With --overlap-param-gather some all-gathers are under way when the next forward begins (the machine's load
    decides how many); without the flag none ever is."""
    overlapping, plain = (
        run(2, traced, f"{DEEP} {DEEP_BUCKETS} {SHARDED} {flag}") for flag in ("--overlap-param-gather", "")
    )
    assert all(map(under_way, overlapping)) and not any(map(under_way, plain))


def under_way(steps: list[dict]) -> int:
    """The number of all-gathers that had begun and not ended when a forward of these steps began."""
    gathers = steps[-1]["all_gather"]
    return sum(start < step["forward"] < stop for step in steps[1:] for start, stop in gathers)


def buckets_by_hand(backend) -> None:
    """A script's own calls: `register_grad_ready` sums a bucket when its last parameter is ready, and a
    ParallelTrainingReducer sums a list of gradients."""
    from mindspore import Tensor

    from pynative.distributed import Bucket, DistributedDataParallel, DistributedDataParallelConfig
    from pynative.training.training import ParallelTrainingReducer, get_model
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(f"{TINY} --global-batch-size 4", backend.world_size)
    ddp_config = DistributedDataParallelConfig(average_in_collective=True)
    with job(backend, config):
        (model,) = get_model(
            lambda **stage: DistributedDataParallel(
                config.training_config, ddp_config, GPTModel(config.model_config, **stage)
            ),
            config,
        )
        (bucket, *_) = model.flat_buffers.buckets
        assert isinstance(bucket, Bucket)
        for _ in range(2):
            model.zero_grad_buffer()
            for parameter in bucket.params:
                parameter.main_grad.asnumpy()[...] = backend.rank + 1.0
                parameter.meta.main_grad_is_empty = False
            for parameter in bucket.params:
                assert bucket.params[0].main_grad.asnumpy().max() <= backend.rank + 1.0
                bucket.register_grad_ready(parameter)
            bucket.final_grad_reduce()
            with pytest.raises(ValueError, match=r"register_grad_ready: .* is not among the parameters of"):
                bucket.register_grad_ready(model.flat_buffers.buckets[-1].params[-1].clone())
            assert all((parameter.main_grad.asnumpy() == 3.0).all() for parameter in bucket.params)
        reducer = ParallelTrainingReducer(bucket.params, config.training_config)
        gradients = [Tensor(np.full(p.shape, backend.rank + 1.0, np.float32)) for p in bucket.params]
        reducer.inplace_reduce_grad(gradients)
        assert all((gradient.asnumpy() == 1.5).all() for gradient in gradients)
        assert not reducer.reduce_is_finite(backend.rank == 0) and reducer.reduce_is_finite(True)


def tied_reduced(backend) -> list[float]:
    """Values of the tied embedding's gradient after ParallelTrainingReducer; before, each is the stage's rank + 1."""
    from mindspore import Tensor

    from pynative.training.training import ParallelTrainingReducer, get_model
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(f"{TINY} --pipeline-model-parallel-size 2", backend.world_size)
    with job(backend, config):
        model = get_model(lambda **stage: GPTModel(config.model_config, **stage), config)
        tied = [p for p in model.trainable_params() if p.meta.spec.shared_over]
        gradients = [Tensor(np.full(p.shape, backend.rank + 1.0, np.float32)) for p in tied]
        ParallelTrainingReducer(tied, config.training_config).inplace_reduce_grad(gradients)
        return [float(np.unique(gradient.asnumpy()).item()) for gradient in gradients]


def test_a_reducer_sums_a_tied_embedding_over_stages():
    """ParallelTrainingReducer sums the gradient of a tied embedding over the two stages that hold it."""
    assert run(2, tied_reduced) == [[3.0], [3.0]]


def values_on_their_way(backend, directory) -> None:
    """Read, write, save and load weights while gathers of a step are under way, and compare them."""
    from pynative.checkpointing import load_checkpoint, save_checkpoint
    from pynative.checkpointing.weights import gather_weights, load_weights
    from pynative.optimizer import get_optimizer, get_optimizer_param_scheduler
    from pynative.training.callbacks import TrainingState
    from pynative.training.forward_backward import get_forward_backward_func
    from pynative.training.training import TrainOneStepCell, get_model
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(f"{MODEL} {SHARDED} --overlap-grad-reduce --ddp-bucket-size 5000 --overlap-param-gather", 2)
    rows = [Rows()[4 * backend.rank + i] for i in range(4)]
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    with job(backend, config):
        model = get_model(lambda **stage: GPTModel(config.model_config, **stage), config)
        optimizer = get_optimizer(config.optimizer_config, config.training_config, network=model)
        scheduler = get_optimizer_param_scheduler(config)
        cell = TrainOneStepCell(model, optimizer, scheduler, config.training_config, config.model_config)
        state = TrainingState(config, model, cell)
        forward_backward = get_forward_backward_func(model, [], config.training_config, config.model_config)

        def step():
            forward_backward(**batch)
            optimizer.step(1e-1, 0.0, 0.5)

        def values():
            optimizer.buffers.finish_param_sync()
            return {p.meta.spec.name: p.asnumpy().copy() for p in model.trainable_params()}

        def check(found, wanted):
            assert [name for name in wanted if not np.array_equal(found[name], wanted[name])] == []

        step()
        gathered, wanted = gather_weights(model), values()
        check(wanted if gathered is None else gathered, wanted)
        step()
        save_checkpoint(directory, state)
        saved = values()
        step()
        load_checkpoint(directory, state)
        check(values(), saved)
        step()
        quarters = {name: np.full_like(value, 0.25) for name, value in saved.items()}
        load_weights(model, quarters)
        check(values(), quarters)


def test_weights_are_saved_and_loaded_behind_gathers(tmp_path):
    """Saving and loading wait for parameter gathers that are under way; weights saved were once those before the step,
    and loaded ones were overwritten."""
    run(2, values_on_their_way, tmp_path)


def test_the_calls_of_scripts_with_a_backward_of_their_own():
    """`register_grad_ready` sums a bucket once its parameters are ready, and refuses a parameter of another one;
    ParallelTrainingReducer averages a list."""
    run(2, buckets_by_hand)


def late(backend, flags: str) -> None:
    """Train with a function behind the embedding whose backward adds a gradient to a weight of a layer, after that
    layer's own backward."""
    from pynative.tape import autograd
    from pynative.transformer.gpt_model import GPTModel

    class Late(autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(weight)
            return x

        @staticmethod
        def backward(ctx, gradient):
            (weight,) = ctx.saved_tensors
            return gradient, autograd.add_weight_gradient(weight, lambda out, accumulate: out)

    class Model(GPTModel):
        def construct(self, *arguments, **named):
            first = self.language_model.decoder.layers
            embedding = self.language_model.embedding
            embed = embedding.word_embeddings.construct
            weight = first.trainable_params()[-1]
            embedding.word_embeddings.construct = lambda ids: Late.apply(embed(ids), weight)
            return super().construct(*arguments, **named)

    train(backend, flags, build=Model)


def test_a_gradient_that_comes_too_late_is_an_error():
    """A gradient for a bucket whose reduction has started raises; it would be lost, differently on each replica."""
    run(2, late, MODEL)
    with pytest.raises(ValueError, match=r"parameter decoder.layers.3.* leave out --overlap-grad-reduce"):
        run(2, late, f"{MODEL} {BUCKETS}")


def test_the_default_size_of_buckets_is_megatrons():
    """max(40 million, 1 million x replicas) elements; with overlap one bucket for the whole chunk on later stages; a
    given size is kept."""
    overlapping = GradientConfig(overlap_grad_reduce=True)
    assert overlapping.bucket_rule({"dp": (0, 8)}).size == 40_000_000
    assert overlapping.bucket_rule({"dp": (0, 64)}).size == 64_000_000
    assert overlapping.bucket_rule({"dp": (0, 8), "pp": (1, 2)}).size is None
    assert GradientConfig(bucket_size=5).bucket_rule({"dp": (0, 8), "pp": (1, 2)}).size == 5
    assert GradientConfig(bucket_size=5, wrap_with_ddp=False).bucket_rule({"dp": (0, 8)}).size is None
    aligned = GradientConfig(use_distributed_optimizer=True, zero_stage=1, enable_mem_align=True)
    rule = aligned.bucket_rule({"intra-dp-cp": (0, 3)})
    assert (rule.entry_alignment * 2, rule.bucket_alignment * 2 // 3) == (512, 512)
