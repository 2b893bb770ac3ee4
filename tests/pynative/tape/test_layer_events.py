"""The events of a chunk's layers: their order, and that gradients are complete when they say so."""

import numpy as np
import pytest

from tests.pynative.tensor_parallel.test_own_model import own_model
from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.families import FAMILIES
from tests.support.layouts import train
from tests.support.pipelines import pipeline
from tests.support.pretraining import pretrain_tiny

FOUR = f"{TINY} --num-layers 4 --global-batch-size 8 --train-iters 2 --untie-embeddings-and-output-weights"
LLAMA = f"{FOUR} {FAMILIES['llama']}"
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers"
SELECTIVE = "--recompute-granularity selective --recompute-modules layernorm mlp core_attn"
FORWARD = ("before_forward", "after_forward")
EVENTS = (*FORWARD, "before_backward", "after_backward")


def observed(backend, flags: str, build=None) -> list:
    """[(event, chunk, cell's path)] of a step; asserts at each "gradients complete" event that the cell's gradients are
    those of the end."""
    from pynative.tape.layer_events import LayerEvents
    from pynative.training.callbacks import Callback

    seen: list[tuple[str, int, str]] = []
    complete: dict[str, np.ndarray] = {}

    class Observer(Callback):
        def on_train_begin(self, state):
            for number, chunk in enumerate(state.model):
                self._observe(number, chunk, LayerEvents.of(chunk))

        def _observe(self, number, chunk, events):
            paths = {id(cell): path.rpartition("language_model.")[2] for path, cell in chunk.cells_and_names()}
            for event in EVENTS:
                events.on(event, lambda cell, event=event: seen.append((event, number, paths[id(cell)])))
            events.on("after_backward", lambda cell: self._complete(events, cell))

        def _complete(self, events, cell):
            if not events.is_last_micro_batch:
                return
            for parameter in events.parameters(cell):
                name = parameter.meta.spec.name
                assert name not in complete, f"{name} was complete before"
                assert not parameter.meta.main_grad_is_empty, name
                complete[name] = parameter.main_grad.asnumpy().copy()
            if cell is events.chunk:
                for parameter in cell.get_parameters():
                    name, gradient = parameter.meta.spec.name, parameter.main_grad.asnumpy()
                    np.testing.assert_array_equal(complete[name], gradient, err_msg=name)

        def on_gradients(self, state, gradient_scale):
            assert complete.keys() == {parameter.meta.spec.name for parameter in state.model.get_parameters()}
            complete.clear()

    more = {} if build is None else {"model_provider_func": lambda **stage: build(state_of(flags, backend))}
    pretrain_tiny(backend, flags, callbacks=[Observer()], **more)
    return seen


def state_of(flags: str, backend):
    """The model section of these flags' configuration."""
    from tests.support.engine import config_of

    return config_of(flags, backend.world_size).model_config


def step_of(layers: range, *, recomputed_with: int = 0) -> list[tuple[str, str]]:
    """The expected [(event, cell)] of one micro-batch on a stage with these layers; recomputed_with: layers that run
    their forward again together."""
    cells = ["embedding", *(f"decoder.layers.{n}" for n in layers), "decoder.final_layernorm", "output_layer"]
    events = [("before_forward", ""), *((event, cell) for cell in cells for event in FORWARD), ("after_forward", "")]
    events.append(("before_backward", ""))
    for place in range(len(cells) - 1, 0, -1):
        group = place - 1
        if recomputed_with and group < len(layers) and group % recomputed_with == recomputed_with - 1:
            again = cells[place - recomputed_with + 1 : place + 1]
            events += [(event, cell) for cell in again for event in FORWARD]
        events += [("before_backward", cells[place]), ("after_backward", cells[place])]
    return [*events, ("before_backward", "embedding"), ("after_backward", "embedding"), ("after_backward", "")]


@pytest.mark.parametrize(
    ("more", "recomputed_with"), [("", 0), (f"{FULL} 1", 1), (f"{FULL} 2", 2), (SELECTIVE, 0), ("--kernels ops", 0)]
)
def test_the_order_of_a_step(more, recomputed_with):
    """The events of two steps of four micro-batches, each forward followed by its backward; recomputed layers run their
    forward again."""
    (seen,) = run(1, observed, f"{FOUR} {more}")
    expected = step_of(range(4), recomputed_with=recomputed_with)
    assert [(event, cell) for event, _, cell in seen] == expected * 8


MORE = {
    "llama ops": (1, f"{LLAMA} --kernels ops"),
    "llama ops bf16": (1, f"{LLAMA} --kernels ops --bf16"),
    "llama bf16 recomputed": (1, f"{LLAMA} --bf16 {FULL} 2"),
    "tied": (1, f"{TINY} --global-batch-size 8"),
    "tied ops": (1, f"{TINY} --global-batch-size 8 --kernels ops"),
    "dropout, sandwich": (1, f"{FOUR} --hidden-dropout 0.1 {SELECTIVE}"),
    "ops recomputed": (1, f"{LLAMA} --kernels ops {FULL} 2"),
    "tp2": (2, f"{FOUR} --tensor-model-parallel-size 2 --sequence-parallel"),
}


@pytest.mark.parametrize("case", MORE)
def test_gradients_are_complete(case):
    """When the events say so a cell's gradients have their final bits, whichever operators compute them; `observed`
    compares them."""
    world, flags = MORE[case]
    assert all(run(world, observed, flags))


@pytest.mark.parametrize("more", ["", FULL + " 1"])
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-h1"])
def test_pipelines(schedule, more):
    """Each chunk's cells are complete in the same order in each micro-batch, its layers from the last to the first, the
    chunk itself at the end."""
    for seen in run(2, observed, f"{FOUR} --global-batch-size 8 {pipeline(schedule, 2)} {more}"):
        chunks = 2 if schedule == "interleaved" else 1
        cells = [
            [path for event, c, path in seen if event == "after_backward" and c == chunk] for chunk in range(chunks)
        ]
        for of_chunk in cells:
            (once,) = {tuple(of_chunk[i : i + len(set(of_chunk))]) for i in range(0, len(of_chunk), len(set(of_chunk)))}
            assert len(of_chunk) == 8 * len(once) and once[-1] == ""
            layers = [path for path in once if path.startswith("decoder.layers")]
            assert layers == sorted(layers, reverse=True) and len(layers) == 2 // chunks


def test_weight_gradients_that_are_put_off_come_before_the_event():
    """ZB-H1: the backward of all layers of a micro-batch has begun before the first layer is said to be complete, as
    weight gradients come later."""
    seen, _ = run(2, observed, f"{FOUR} {pipeline('zb-h1', 2)}")
    first = next(i for i, (event, _, _) in enumerate(seen) if event == "after_backward")
    begun = [path for event, _, path in seen[:first] if event == "before_backward"]
    assert {"decoder.layers.0", "decoder.layers.1"} <= set(begun)


def test_a_model_of_ones_own():
    """In a user's model whose norm alone is an observed cell, all other gradients are complete with the chunk."""
    (seen,) = run(1, observed, f"{TINY} --global-batch-size 4 --untie-embeddings-and-output-weights", own_model)
    assert [(event, path) for event, _, path in seen[:7]] == [
        ("before_forward", ""),
        ("before_forward", "norm"),
        ("after_forward", "norm"),
        ("after_forward", ""),
        ("before_backward", ""),
        ("before_backward", "norm"),
        ("after_backward", "norm"),
    ]


def trained_with_observer(backend, flags: str, is_observed: bool):
    from pynative.tape.layer_events import LayerEvents
    from pynative.transformer.gpt_model import GPTModel

    def build(config, **stage):
        model = GPTModel(config, **stage)
        for event in EVENTS if is_observed else ():
            LayerEvents.of(model).on(event, lambda cell: None)
        return model

    return train(backend, flags, build=build)


@pytest.mark.parametrize("more", ["--kernels ops", f"{FULL} 1 --hidden-dropout 0.2"])
def test_an_observer_changes_no_bit(more):
    """Gradients, weights and optimizer states with observers of the events are those without, to the bit."""
    (plain,), (seen,) = (run(1, trained_with_observer, f"{LLAMA} {more}", observes) for observes in (False, True))
    assert seen[:2] == plain[:2] and seen.digests == plain.digests


def unobserved(backend) -> tuple[bool, bool]:
    """(whether any cell is hooked before an observer is added, whether all are afterwards)."""
    from pynative.tape.layer_events import LayerEvents
    from pynative.transformer.gpt_model import GPTModel
    from tests.support.engine import config_of, job

    config = config_of(TINY + " --global-batch-size 4", 1)
    with job(backend, config):
        events = LayerEvents.of(GPTModel(config.model_config))
        before = any(cell.events is not None for cell in events.cells)
        events.on("before_forward", lambda cell: None)
        return before, all(cell.events is events and "construct" not in vars(cell) for cell in events.cells)


def test_cells_tell_nothing_where_nobody_observes():
    """Cells are hooked only from the first observer on, and then all of them."""
    assert run(1, unobserved) == [(False, True)]
