"""Parameters of every type that can be trained, saved in a checkpoint and loaded."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job

TYPES = ("float32", "float16", "bfloat16")
VALUES = np.linspace(-2.0, 3.0, 15).reshape(3, 5)


def save_and_load(backend, directory: Path) -> list[tuple[np.ndarray, ...]]:
    """[(as saved, as loaded)] of each value and optimizer state of a user's cell, as float32; another cell loads what
    the first saved."""
    import mindspore as ms
    from mindspore import Parameter, nn

    from pynative.checkpointing import load_checkpoint, save_checkpoint
    from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
    from pynative.optimizer import get_optimizer, get_optimizer_param_scheduler
    from pynative.parameter import as_type, name_parameters

    class OfAllTypes(nn.Cell):
        def __init__(self, values: np.ndarray) -> None:
            super().__init__()
            for name in TYPES:
                setattr(self, name, Parameter(as_type(values.astype(np.float32), getattr(ms, name))))

    def state_of(values: np.ndarray) -> SimpleNamespace:
        model = nn.CellList([OfAllTypes(values)])
        buffers = ParamAndGradBuffers(name_parameters(model), config.training_config.gradient)
        optimizer = get_optimizer(config.optimizer_config, buffers)
        step_cell = SimpleNamespace(optimizer=optimizer, scheduler=get_optimizer_param_scheduler(config))
        run = {"iteration": 3, "consumed_samples": 6, "callbacks": (), "callback_states": {}}
        run |= {"run_id": "a run", "resumed_from": None}
        return SimpleNamespace(config=config, model=model, step_cell=step_cell, **run)

    def contents(state) -> list[np.ndarray]:
        pairs = state.step_cell.optimizer.states_of_parameters()
        return [x.astype(ms.float32).asnumpy().copy() for p, _, states in pairs for x in (p, *states.values())]

    config = config_of(TINY, 1)
    with job(backend, config):
        before, after = state_of(VALUES), state_of(0 * VALUES)
        for _, parameter in before.step_cell.optimizer.buffers.entries:
            parameter.main_grad.asnumpy()[...] = VALUES
        before.step_cell.optimizer.step(1e-2, 0.0, 1.0)
        load_checkpoint(save_checkpoint(directory, before), after)
        return list(zip(contents(before), contents(after), strict=True))


def test_every_type_comes_back_bit_for_bit(tmp_path):
    """Weights are saved in their type, moments and the float32 values of 16-bit weights in float32; all are loaded to
    the bit."""
    pairs = run(1, save_and_load, tmp_path)[0]
    assert len(pairs) == 3 + 4 + 4
    for saved, loaded in pairs:
        assert np.abs(saved).max() > 1e-3
        np.testing.assert_array_equal(saved, loaded)
