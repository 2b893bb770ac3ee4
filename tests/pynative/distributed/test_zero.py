"""ZeRO stages 0 - 3 against each other: ranks keep different parts of weights, gradients and states, but compute the
same."""

import numpy as np
import pytest

from parallel_core.costs import StagePlan
from parallel_core.numerics.dtypes import DTYPES
from tests.support.distributed import run
from tests.support.engine import TINY, config_of
from tests.support.families import FAMILIES
from tests.support.layouts import Trained, check_layout, train

UNTIED = "--untie-embeddings-and-output-weights --num-layers 5 --position-embedding-type rope"
FLAGS = f"{TINY} --micro-batch-size 1 --weight-decay 0.1"
TP2 = "--tensor-model-parallel-size 2 --sequence-parallel"
RECOMPUTED = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2 --hidden-dropout 0.1"
EXPERTS = FAMILIES["experts"]
"""Flags of a model with experts in every second layer."""
LAYOUTS = [
    (2, "--zero-stage 2", ""),
    (2, "--zero-stage 3", ""),
    (4, "--zero-stage 2 --num-distributed-optimizer-instances 2", UNTIED),
    (4, "--zero-stage 3 --num-distributed-optimizer-instances 2", UNTIED),
    (4, f"--zero-stage 2 {TP2} --overlap-grad-reduce", UNTIED),
    (4, f"--zero-stage 3 {TP2} --overlap-grad-reduce", UNTIED),
    (4, "--zero-stage 3 --context-parallel-size 2", UNTIED),
    (2, "--zero-stage 3 --overlap-grad-reduce", f"{UNTIED} {RECOMPUTED}"),
    (4, "--zero-stage 3 --expert-model-parallel-size 2 --overlap-grad-reduce", f"{EXPERTS} --num-layers 3"),
    (4, "--zero-stage 2 --pipeline-model-parallel-size 2", ""),
    (4, "--zero-stage 2 --pipeline-model-parallel-size 2 --pipeline-schedule zb-h1 --overlap-grad-reduce", UNTIED),
    (4, "--zero-stage 2 --pipeline-model-parallel-size 2 --virtual-pipeline-model-parallel-size 2", "--num-layers 4"),
]


@pytest.mark.parametrize(("world", "layout", "model"), LAYOUTS)
def test_it_is_one_process(world, layout, model):
    """Each stage under each layout, two micro-batches a data rank: losses, norms, first gradients, updates and states
    are one process's, replicas' shards equal to the bit."""
    replicas = config_of(f"{FLAGS} --global-batch-size 8 {model} {layout}", world).parallel_config.data_parallel_size
    check_layout(f"{FLAGS} --global-batch-size {2 * replicas} {model}", world, layout)


def ahead_or_not(backend, flags: str, ahead: bool) -> Trained:
    """Train with parameters fetched ahead of the layer that needs them, or gathered only when needed."""
    from pynative.distributed.zero import FetchParameters

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FetchParameters, "fetches_ahead", ahead)
        return train(backend, flags)


@pytest.mark.parametrize("types", ["", "--bf16", "--fp16 --initial-loss-scale 64"])
def test_stages_are_equal_to_the_bit(types):
    """One micro-batch a rank, so that sums over ranks and micro-batches are the same: stages 0 - 3, 16-bit weights'
    float32 values included, parameters gathered ahead or not, once or twice.

    Nearly every element has moved. The first run saves results of norms; the others recompute them, from weights that
    are in a slot only for a moment.
    """
    flags = f"{TINY} --global-batch-size 4 --clip-grad 0 --lr 1e-2 {UNTIED} {types}"
    plain = run(2, train, rf"{flags} --zero-stage 0 --select-recompute-exclude ['.*_layernorm','mlp\\.activation']")[0]
    others = [
        run(2, train, f"{flags} --zero-stage 2")[0],
        run(2, ahead_or_not, f"{flags} --zero-stage 3 --overlap-grad-reduce --recompute-norm", True)[0],
        run(2, ahead_or_not, f"{flags} --zero-stage 3", False)[0],
        run(2, train, f"{flags} --zero-stage 3 --no-parallel-optimizer-comm-recompute")[0],
    ]
    for other in others:
        assert other.losses == plain.losses
        for kind in ("gradients", "initial", "final", "state"):
            found, wanted = getattr(other, kind), getattr(plain, kind)
            assert found.keys() == wanted.keys()
            for name, values in wanted.items():
                np.testing.assert_array_equal(found[name], values, err_msg=f"{kind} {name}")
    last = {name: plain.state.get(f"main_param.{name}", values) for name, values in plain.final.items()}
    moved = {name: (values != plain.initial[name]).mean() for name, values in last.items()}
    assert {name: share for name, share in moved.items() if share < 0.97} == {}


def allocated(backend, flags: str) -> tuple[list[int], list[int]]:
    """(bytes of each buffer's parameters and gradients; bytes of each buffer's optimizer states) that this rank has
    allocated."""
    from tests.support.pretraining import pretrain_tiny

    optimizer = pretrain_tiny(backend, flags).step_cell.optimizer
    memories = [sum(memory.bytes for memory in buffer.memories) for buffer in optimizer.buffers]
    states = [sum(memory.bytes for memory in states.values()) for states in optimizer._states]
    return memories, states


@pytest.mark.parametrize("types", ["", "--bf16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bytes_are_the_plans(stage, types):
    """Allocated bytes equal the planner's exactly. In float32, P parameters on N ranks, by stage: 0: 16P; 1: 8P + 8P/N;
    2: 4P + 12P/N and slots; 3: 16P/N and slots."""
    flags = f"{TINY} {UNTIED} --global-batch-size 4 --train-iters 1 --zero-stage {stage} {types}"
    config, found = config_of(flags, 2), run(2, allocated, flags)
    memories, states = zip(*found, strict=True)
    planned, planned_states, whole, slots = [], [], 0, 0
    for plan, kept in StagePlan(config, 0).residences:
        of_parameter, of_gradient = DTYPES[plan.parameter_type].bytes, DTYPES[plan.gradient_type].bytes
        planned.append(
            of_parameter * (sum(span.size for span in kept.parameters) + kept.parameter_slots.size)
            + of_gradient * (sum(span.size for span in kept.gradients) + kept.gradient_slots.size)
        )
        planned_states.append(
            4 * sum(span.size for span in kept.owned) * (2 if plan.parameter_type == "float32" else 3)
        )
        whole += plan.size
        slots += kept.parameter_slots.size + kept.gradient_slots.size
    assert memories == (planned, planned) and states == (planned_states, planned_states)
    if not types:
        per_element = {0: 16, 1: 8 + 8 / 2, 2: 4 + 12 / 2, 3: 16 / 2}[stage]
        assert sum(planned) + sum(planned_states) == per_element * whole + 4 * slots
        assert bool(slots) == (stage > 1)


def gathered(backend, flags: str) -> list[int]:
    """The number of all-gathers of weights in each training step."""
    from pynative import parallel_state
    from pynative.training.callbacks import Callback
    from tests.support.pretraining import pretrain_tiny

    found = []

    class Watch(Callback):
        reads_parameters = False

        def on_train_begin(self, state):
            backend.trace.reset()

        def on_step_end(self, state):
            found.append(backend.trace.of(parallel_state.get_group("dp-cp").name, "all_gather").calls)
            backend.trace.reset()

    pretrain_tiny(backend, flags, callbacks=[Watch()])
    return found


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_weights_are_kept_for_the_backward_if_the_documents_key_says_so(micro_batches, tmp_path):
    """`parallel_optimizer_comm_recompute: False` gathers each of 8 cells once a step; True again for each backward, and
    following forward, whose slot holds another layer's weights."""
    file = tmp_path / "file.yaml"
    flags = f"{TINY} {UNTIED} --global-batch-size {4 * micro_batches} --micro-batch-size 2 --zero-stage 3"
    steps = {}
    for again in (True, False):
        file.write_text(f"recompute_config: {{parallel_optimizer_comm_recompute: {again}}}\n")
        steps[again] = run(2, gathered, f"{flags} --yaml-cfg {file}")[0]
    cells, kept = 8, 3
    assert steps[False] == [cells, cells]
    assert steps[True] == [cells + (2 * micro_batches - 1) * (cells - kept)] * 2


def watched(backend, flags: str) -> list:
    """[validation losses, norm of the weights, tokens generated, number of tokens generated from a prompt that differs
    by rank, or the error] of a trained model."""
    from pynative.generation import generate
    from pynative.optimizer.statistics import ModelStatistics
    from tests.support.engine import job
    from tests.support.pretraining import evaluated, pretrain_tiny

    found = evaluated(backend, f"{flags} --eval-iters 2 --eval-interval 1")
    state = pretrain_tiny(backend, flags)
    with job(backend, state.config):
        norm = ModelStatistics(state.step_cell.buffers).parameter_norm()
        tokens = generate(state.model[0], [3, 5, 7], max_new_tokens=4)
        try:
            own = len(generate(state.model[0], [3 + backend.rank], max_new_tokens=2 + backend.rank))
        except ValueError as error:
            own = str(error)
    return [found, norm, tokens, own]


def test_what_reads_weights_finds_them():
    """Stage 3 gives stage 0's validation losses, norm of weights and generated tokens; a prompt that differs by rank,
    where ranks lack weights, is an error on all."""
    flags = f"{TINY} {UNTIED} --global-batch-size 4 --clip-grad 0"
    (plain_seen, plain_norm, plain_tokens, first), (*_, second) = run(2, watched, f"{flags} --zero-stage 0")
    assert (first, second) == (2, 3)
    for seen, norm, tokens, own in run(2, watched, f"{flags} --zero-stage 3"):
        assert seen == plain_seen and tokens == plain_tokens
        assert norm == pytest.approx(plain_norm, rel=1e-6)
        assert "call it alike" in own


def assigned(backend, flags: str, event: str, value: float | None) -> None:
    """Train with a callback that assigns a value (None: the parameter + 1) to a parameter at this event, and check that
    an error says to use load_weights."""
    from mindspore import Tensor

    from pynative.memory import in_place
    from pynative.training.callbacks import Callback
    from tests.support.pretraining import pretrain_tiny

    def assign(self, state):
        parameter = next(p for p in state.model.get_parameters() if p.ndim == 2)
        values = np.full(parameter.shape, 0.0 if value is None else value, np.float32)
        in_place.assign(parameter, parameter + 1 if value is None else Tensor(values))

    with pytest.raises(ValueError, match=r"some were assigned values.*load_weights"):
        pretrain_tiny(backend, flags, callbacks=[type("Assigns", (Callback,), {event: assign})()])


def test_values_that_a_checkpoint_would_lack_are_an_error(tmp_path):
    """Stage 3: values assigned after the last step, which no forward would gather over, are found when the checkpoint
    is saved; none is written."""
    flags = f"{TINY} {UNTIED} --global-batch-size 4 --zero-stage 3 --save {tmp_path} --save-interval 9"
    run(2, assigned, flags, "on_train_end", 1.0)
    assert not list(tmp_path.glob("iter_*"))


@pytest.mark.parametrize("types", ["", "--bf16"])
@pytest.mark.parametrize(("event", "value"), [("on_train_begin", None), ("on_train_begin", 0.0), ("on_step_end", 1.0)])
def test_values_that_would_be_lost_are_an_error(event, value, types):
    """Stage 3: a value that a script assigns to a parameter before the first step or between steps is an error, also if
    it is zero."""
    if value is not None or not types:
        run(2, assigned, f"{TINY} {UNTIED} --global-batch-size 4 --zero-stage 3 {types}", event, value)


def read(backend, flags: str) -> list[float]:
    """For each step: least and largest element of the parameters as a callback finds them, then the sum of each
    parameter that `whole_parameters` gathers."""
    from pynative.parameter import whole_parameters
    from pynative.training.callbacks import Callback
    from tests.support.pretraining import pretrain_tiny

    found = []

    class Reads(Callback):
        def on_step_end(self, state):
            values = [p.asnumpy() for p in state.model.get_parameters()]
            found.extend([min(v.min() for v in values), max(v.max() for v in values)])
            found.extend(float(p.asnumpy().sum()) for p in whole_parameters(state.model))

    pretrain_tiny(backend, flags, callbacks=[Reads()])
    return found


def test_whoever_reads_weights_between_steps_has_them_or_sees_that_they_are_not_there():
    """Stage 3: `whole_parameters` gives a callback stage 0's weights to the bit; a parameter read without it is -1024
    everywhere, no other layer's values."""
    flags = f"{TINY} {UNTIED} --global-batch-size 4 --clip-grad 0 --train-iters 1"
    (plain, _), (cut, _) = (run(2, read, f"{flags} --zero-stage {stage}") for stage in (0, 3))
    assert cut[:2] == [-1024, -1024] and plain[0] > -1024
    assert cut[2:] == plain[2:] and len(plain) > 20


def with_optimizers(backend, flags: str, count: int) -> list:
    """Results of two steps by the last of `count` optimizers that were built over one model, one after the other."""
    import gc

    from pynative.optimizer import get_optimizer, get_optimizer_param_scheduler
    from pynative.training.training import TrainOneStepCell, get_model
    from pynative.transformer.gpt_model import GPTModel
    from tests.support.engine import job
    from tests.support.layouts import Rows

    config = config_of(flags, backend.world_size)
    rows = [Rows()[2 * backend.rank + i] for i in range(2)]
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    with job(backend, config):
        model = get_model(lambda **stage: GPTModel(config.model_config, **stage), config)
        for _ in range(count):
            optimizer = None
            gc.collect()
            optimizer = get_optimizer(config.optimizer_config, config.training_config, network=model)
        scheduler = get_optimizer_param_scheduler(config)
        step = TrainOneStepCell(model, optimizer, scheduler, config.training_config, config.model_config)
        return [step(**batch) for _ in range(2)]


def refused(backend, flags: str) -> None:
    """Check the error of a second optimizer over a model that stage 3 of the first has cut."""
    with pytest.raises(ValueError, match="--zero-stage 3 of an earlier optimizer has cut it"):
        with_optimizers(backend, flags, 2)


def test_an_optimizer_is_built_anew():
    """Stage 2: a second optimizer over a model trains as the only one would, without hooks of the first. Stage 3: it is
    refused."""
    flags = f"{TINY} {UNTIED} --global-batch-size 4"
    twice, once = (run(2, with_optimizers, f"{flags} --zero-stage 2", count) for count in (2, 1))
    assert twice == once
    run(2, refused, f"{flags} --zero-stage 3")


def warnings_of(backend, flags: str) -> list[str]:
    """The warnings of building an optimizer over a model none of whose cells can be observed, and over GPTModel."""
    from mindspore import Parameter, Tensor, nn

    from pynative.optimizer import get_optimizer
    from pynative.training.training import get_model
    from pynative.transformer.gpt_model import GPTModel
    from tests.support.engine import job

    class Own(nn.Cell):
        def __init__(self, **stage):
            super().__init__(auto_prefix=False)
            self.weight = Parameter(Tensor(np.ones((8, 8), np.float32)), name="weight")

        def set_input_tensor(self, tensor):
            """Ignored: there is no stage before this one."""

    config, found = config_of(flags, backend.world_size), []
    with job(backend, config), pytest.MonkeyPatch.context() as patch:
        patch.setattr("pynative.distributed.param_and_grad_buffer.warn", found.append)
        for provider in (Own, lambda **stage: GPTModel(config.model_config, **stage)):
            get_optimizer(config.optimizer_config, config.training_config, network=get_model(provider, config))
    return found


@pytest.mark.parametrize(("stage", "said"), [(1, 0), (2, 1), (3, 1)])
def test_what_cannot_be_cut_is_said(stage, said):
    """ZeRO stages 2 and 3 warn once of a model none of whose cells can be observed; stage 1 and GPTModel do not."""
    found = run(2, warnings_of, f"{TINY} {UNTIED} --global-batch-size 4 --zero-stage {stage}")[0]
    assert len(found) == said and all(f"--zero-stage {stage}: 100% of" in line for line in found)
