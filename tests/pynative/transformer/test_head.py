"""The output layer: whole and cut logits, a tied weight, several calls in one step."""

import mindspore as ms
import numpy as np
import pytest

from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.layouts import Rows, check_layout, train

TP2 = "--tensor-model-parallel-size 2"
UNTIED = "--untie-embeddings-and-output-weights"


def train_with_whole_logits(backend, flags: str) -> tuple:
    return train(backend, flags, model={"parallel_output": False})


@pytest.mark.parametrize("flags", [f"{TINY} --global-batch-size 4", f"{TINY} --global-batch-size 4 {UNTIED}"])
def test_the_loss_does_not_depend_on_the_form_of_logits(flags):
    """tp2 with parallel_output=False has one process's loss: each rank used to count every token's exponentials, + ln
    2."""
    check_layout(flags, 2, f"{TP2} --sequence-parallel", how=train_with_whole_logits)


def logits(backend, flags: str, parallel_output: bool) -> np.ndarray:
    """A model's logits with initial values on one batch, of this rank."""
    from pynative.training.training import get_model
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(f"{TINY} {flags}", backend.world_size)
    with job(backend, config):
        model = get_model(lambda **s: GPTModel(config.model_config, parallel_output=parallel_output, **s), config)[0]
        return model(ms.Tensor(np.stack([Rows()[i]["tokens"] for i in range(2)]))).asnumpy()


@pytest.mark.parametrize("flags", ["", UNTIED])
def test_logits_are_cut_or_whole(flags):
    """tp2: each rank has its columns of the vocabulary, in the order of ranks, or with parallel_output=False all of
    them."""
    (expected,) = run(1, logits, flags, True)
    cut = run(2, logits, f"{TP2} {flags}", True)
    rounding = 1e-6 * np.abs(expected).max()  # Relative to the largest logit, because addends may cancel.
    for whole in (np.concatenate(cut, -1), *run(2, logits, f"{TP2} {flags}", False)):
        np.testing.assert_allclose(whole, expected, rtol=0, atol=rounding)


def called_twice(backend, flags: str) -> tuple[np.ndarray, np.ndarray]:
    """(sum of the output weight's gradients of two separate steps with a hidden state each, its gradient of one step
    with both)."""
    from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
    from pynative.parameter import trainable
    from pynative.tape import autograd
    from pynative.training.training import get_model
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(f"{TINY} {flags}", backend.world_size)
    generator = np.random.default_rng(3)
    states = [ms.Tensor(generator.standard_normal((16, 2, 32)).astype(np.float32)) for _ in range(2)]
    with job(backend, config):
        chunks = get_model(lambda **stage: GPTModel(config.model_config, **stage), config)
        buffers, model = ParamAndGradBuffers(trainable(chunks), config.training_config.gradient), chunks[0]
        head = model.language_model.output_layer
        own = None if UNTIED in flags else model.shared_embedding_or_output_weight()
        weight = head.weight if own is None else own

        def gradient(inputs: list) -> np.ndarray:
            buffers.empty_gradients()
            with autograd.recording():
                results = [head(x, own) for x in inputs]
            for result in results:
                autograd.backward([result], [ms.Tensor(np.ones(result.shape, np.float32))])
            return weight.main_grad.asnumpy().copy()

        return gradient(states[:1]) + gradient(states[1:]), gradient(states)


@pytest.mark.parametrize("flags", ["", UNTIED])
def test_the_head_may_run_on_several_hidden_states(flags):
    """The weight's gradients of several calls in one step add up, as multi-token prediction needs."""
    ((apart, together),) = run(1, called_twice, flags)
    assert np.abs(apart).max() > 1.0
    np.testing.assert_allclose(together, apart, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "error"), [("inference_params", ValueError), ("retriever_input_id", TypeError)])
def test_arguments_of_other_models_are_refused(name, error):
    """Megatron's arguments that GPTModel does not use must be None (ValueError); unknown names are a TypeError."""
    from pynative.transformer.language_model import check_unused

    check_unused(tokentype_ids=None)
    with pytest.raises(error, match=name):
        check_unused(**{name: 1})
