"""Training: the loop, one step, data, losses and callbacks.

`Trainer`, `TrainingArguments` and two loss scalers of MindFormers are here, too, each loaded when it is asked for. Some
further names of MindFormers raise an ImportError that says what to use instead.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "Trainer": "trainer",
    "TrainingArguments": "trainer",
    "AdaptiveLossScaleUpdateCell": "loss_scale",
    "DynamicLossScaleUpdateCell": "loss_scale",
}
_INSTEAD = {
    "AutoModel": "a network is made of its configuration: pynative.transformer.gpt_model.GPTModel",
    "init_context": "devices are the launcher's: pynative.training.utils.set_parallel_context",
    "ContextConfig": "devices are the launcher's: pynative.training.utils.set_parallel_context",
    "MFTrainOneStepCell": "a Trainer makes the step of its configuration",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"pynative.training.{_MODULES[name]}"), name)
    if name in _INSTEAD:
        raise ImportError(f'{name}: {_INSTEAD[name]}; see "A run of a Trainer" in docs/migrating.md')
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
