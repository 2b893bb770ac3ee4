"""Probabilities that a model gives to answers.

s sequence, b batch, h hidden, v vocabulary.
"""

from collections.abc import Sequence

import mindspore
import numpy as np
from mindspore import Tensor, nn

from parallel_core.data.questions import FLAG, Task, problems
from parallel_core.findings import ConfigError, Finding
from parallel_core.numerics.dtypes import Array
from parallel_core.sampling import log_probability
from pynative import kernels, parallel_state
from pynative.generation.forward import Forward
from pynative.generation.texts import check, check_alike, inference


class _Answers(Forward):
    """One forward over whole texts, which returns the logits before each token of the answers."""

    def __init__(self, model: nn.Cell, tasks: Sequence[Task]) -> None:
        super().__init__(model, model.config.seq_length, use_cache=False)
        firsts = [len(task.prompt) - 1 for task in tasks]
        places = [np.arange(len(task.answer)) + first for task, first in zip(tasks, firsts, strict=True)]
        self._places = np.concatenate(places)
        self._texts = np.repeat(np.arange(len(tasks)), [len(task.answer) for task in tasks])

    def _logits(self, hidden_states: Tensor, last: Array) -> Array:
        """Logits [tokens of all answers, ids of the tokenizer], task by task; last: [b], ignored but for its length."""
        places, texts = self._places, self._texts
        if self.shards == 1:  # only these rows go through the head
            rows = (places * len(last) + texts).astype(np.int32)
            hidden_states = kernels.gather_rows(hidden_states, rows, (hidden_states.shape[-1],)).expand_dims(0)
            places, texts = np.zeros_like(places), np.arange(len(places))
        logits = self.model._logits(hidden_states, parallel_output=False).astype(mindspore.float32).asnumpy()
        return logits[places, texts, : self.config.unpadded_vocab_size]


def answer_logprobs(model: nn.Cell, tasks: Sequence[Task]) -> list[Array]:
    """For each task the natural logarithm of the probability of every token of its answer, given the prompt and the
    answer's tokens before: float32 [tokens of the answer]. The ranks that `texts.check_alike` compares call this with
    the same tasks and get the same. Raises ValueError if their tasks differ, for prompts and layouts that
    `texts.check` refuses, and, naming every such task by its line, for prompts and answers that do not fit the model's
    sequence together, and answers that are empty or have ids that are not the model's.
    """
    check(model, [task.prompt for task in tasks], 1)
    room, ids = model.config.seq_length, model.config.unpadded_vocab_size
    found = [(task.line, problem) for task in tasks for problem in problems(task, room, ids)]
    if found:
        raise ConfigError([Finding(FLAG, f"line {line}", problem, "change it") for line, problem in found])
    check_alike(model, tasks)
    wanted = [token for task in tasks for token in task.answer]
    logprobs = np.zeros(len(wanted), np.float32)
    with inference(model):
        logits = _Answers(model, tasks)([[*task.prompt, *task.answer[:-1]] for task in tasks])
    if logits is not None:
        logprobs[:] = [log_probability(row, token) for row, token in zip(logits, wanted, strict=True)]
    group = parallel_state.get_pipeline_model_parallel_group()
    whole = group.broadcast(Tensor(logprobs), group.size - 1).asnumpy()
    return np.split(whole, np.cumsum([len(task.answer) for task in tasks])[:-1])
