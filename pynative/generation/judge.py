"""The judgement of a model by the answers of a file: the loss on each, and whether it generates it exactly."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mindspore import nn

from parallel_core.data.questions import Task
from parallel_core.data.tokenizers import MegatronTokenizer
from parallel_core.sampling import Asked
from pynative import parallel_state
from pynative.generation.scores import answer_logprobs
from pynative.generation.texts import Text, generate_texts


@dataclass(frozen=True)
class Given:
    """A model's result on one question of the file: the mean loss of the given answer's `tokens` tokens, whether the
    model's greedy continuation is that answer (see `Judge`), and the text of the continuation. `line` is the number of
    the question's line in the file, from 1."""

    line: int
    loss: float
    """Mean over the answer's tokens, natural logarithm."""
    tokens: int
    is_exact: bool
    text: str
    """The words of the greedy continuation: until an id that ends an answer, or one token beyond the longest answer of
    the batch; where `Judge` has no such ids, of as many tokens as the answer has."""


class Judge:
    """A model whose answers to questions are compared with given ones.

    Args:
        ends: ids that end an answer: of both answers the part before the first such id is compared, of the generated
            one at most one token more than the longest given answer of those computed with it has. With an empty set
            the first generated tokens, as many as the given answer has, are compared with it.

    A match is exact if the token ids are the same, or if the decoded texts are after white space around them is cut.
    """

    def __init__(self, model: nn.Cell, tokenizer: MegatronTokenizer, ends: frozenset[int]) -> None:
        self.model, self.tokenizer, self.ends = model, tokenizer, ends

    def judged(self, tasks: Sequence[Task], batch_size: int) -> list[Given]:
        """The results on all tasks, in their order; at most `batch_size` tasks are computed at a time."""
        batches = (tasks[first : first + batch_size] for first in range(0, len(tasks), batch_size))
        return [one for batch in batches for one in self._judged_at_once(batch)]

    def _judged_at_once(self, tasks: Sequence[Task]) -> list[Given]:
        logprobs = answer_logprobs(self.model, tasks)
        longest = max(len(task.answer) for task in tasks)
        texts = generate_texts(self.model, [task.prompt for task in tasks], Asked(longest + 1, ends=self.ends))
        return [
            Given(task.line, -float(own.mean()), len(own), *self._compared(task, text))
            for task, own, text in zip(tasks, logprobs, texts, strict=True)
        ]

    def _compared(self, task: Task, text: Text) -> tuple[bool, str]:
        """(Whether the answer was generated, as ids or as words but for blanks around them; the generated words)."""
        end = next((place for place, token in enumerate(task.answer) if token in self.ends), len(task.answer))
        answer, said = task.answer[:end], text.new if self.ends else text.new[:end]
        words = self.tokenizer.detokenize(said)
        return said == answer or words.strip() == self.tokenizer.detokenize(answer).strip(), words


def summary(given: Sequence[Given]) -> dict[str, Any]:
    """The figures over all results: "loss", the mean over all answers' tokens, "exact_match", the share of exact
    matches, and the numbers of "answers" and of their "tokens". Raises ValueError if there is no result."""
    if not given:
        raise ValueError("there is no result to sum up; judge at least one task")
    tokens = sum(one.tokens for one in given)
    loss = sum(one.loss * one.tokens for one in given) / tokens
    return {
        "loss": loss,
        "exact_match": sum(one.is_exact for one in given) / len(given),
        "answers": len(given),
        "tokens": tokens,
    }


def show(given: Sequence[Given], as_json: bool) -> None:
    """Print the summary on rank 0; as_json: as one object, with the result of each line. Raises ValueError there if
    there is no result."""
    if parallel_state.get_global_rank() != 0:
        return
    whole = summary(given)
    if as_json:
        print(json.dumps({**whole, "lines": [vars(one) for one in given]}, ensure_ascii=False))
        return
    print(f"loss {whole['loss']:.6f} over {whole['tokens']} tokens of {whole['answers']} answers")
    print(f"exact matches {whole['exact_match']:.2%}")
