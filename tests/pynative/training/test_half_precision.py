"""A user's own 16-bit parameter in a model is trained, not left as it was in silence."""

import mindspore as ms
import numpy as np
from mindspore import Parameter

from tests.support.distributed import run
from tests.support.pretraining import BATCHES, pretrain_tiny


def trained_scale(backend, dtype: str) -> tuple[np.ndarray, str]:
    """(value after three steps, type) of a user's parameter that begins at 1 and scales the loss."""
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
    """A user's 16-bit parameter takes the steps of the same one in float32, up to rounding."""
    (expected, _), (found, dtype) = run(1, trained_scale, "float32")[0], run(1, trained_scale, "float16")[0]
    assert dtype == "Float16" and abs(expected[0] - 1.0) > 0.02
    np.testing.assert_allclose(found, expected, atol=2**-10)
