"""A 16-bit parameter of a user's own is trained; it does not stay as it was without a word."""

import mindspore as ms
import numpy as np
from mindspore import Parameter

from tests.support.distributed import run
from tests.support.pretraining import BATCHES, pretrain_tiny


def trained_scale(backend, dtype: str) -> tuple[np.ndarray, str]:
    """A scale of the user's own, which starts at 1, after three steps; and its type."""
    from pynative.transformer.gpt_model import GPTModel
    from tests.support.engine import config_of

    class Scaled(GPTModel):
        def __init__(self, config, **stage):
            super().__init__(config, **stage)
            self.scale = Parameter(ms.Tensor(np.ones(1, np.float32)).astype(getattr(ms, dtype)))

        def construct(self, **batch):
            return super().construct(**batch) * self.scale.astype(ms.float32).sum()

    flags = f"{BATCHES} --train-iters 3 --lr 1e-2 --lr-decay-style constant --clip-grad 0"
    model_config = config_of(flags, backend.world_size).model_config
    state = pretrain_tiny(backend, flags, model_provider_func=lambda **stage: Scaled(model_config, **stage))
    scale = state.model[0].scale
    return scale.astype(ms.float32).asnumpy(), str(scale.dtype)


def test_a_half_precision_parameter_of_ones_own_is_trained():
    """It makes the steps that the same parameter makes in 32 bits, up to its rounding."""
    (expected, _), (found, dtype) = run(1, trained_scale, "float32")[0], run(1, trained_scale, "float16")[0]
    assert dtype == "Float16" and abs(expected[0] - 1.0) > 0.02
    np.testing.assert_allclose(found, expected, atol=2**-10)
