"""Texts from a trained model, a token of each at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from mindspore import Tensor, nn

from parallel_core.numerics.dtypes import Array
from parallel_core.sampling import Sampling, log_probability
from pynative import parallel_state
from pynative.generation.checks import check, check_alike
from pynative.generation.forward import Forward
from pynative.tape.autograd import no_grad


@dataclass
class Text:
    """A prompt and what follows it."""

    prompt: list[int]
    new: list[int] = field(default_factory=list)
    """The ids that follow; the one that ends a document is left out."""
    logprobs: list[float] = field(default_factory=list)
    """Natural logarithm of each new token's probability, by the model alone: whatever the way of drawing."""
    is_over: bool = False
    """No more tokens follow."""

    @property
    def ids(self) -> list[int]:
        """All of them."""
        return self.prompt + self.new


@dataclass(frozen=True)
class Asked:
    """How each prompt is continued."""

    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    ends: frozenset[int] = frozenset()
    """Ids that end a text; they are left out."""
    use_cache: bool = True
    """Keep keys and values of earlier tokens, where the model can; the result is the same."""


IsOver = Callable[[Text], bool]
"""Whether a text that got a token is over."""


def generate(
    model: nn.Cell,
    tokens: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    end_of_document: int | None = None,
    use_cache: bool = True,
) -> list[int]:
    """The tokens that follow `tokens`: at most `max_new_tokens`, fewer if `end_of_document` comes (it is left out).

    See `generate_texts`; for the ways of drawing `parallel_core.sampling.Sampling`.
    """
    sampling = Sampling(temperature, top_k, top_p, repetition_penalty, seed)
    ends = frozenset() if end_of_document is None else frozenset({end_of_document})
    return generate_texts(model, [tokens], Asked(max_new_tokens, sampling, ends, use_cache))[0].new


def generate_texts(
    model: nn.Cell,
    prompts: Sequence[Sequence[int]],
    asked: Asked,
    is_over: IsOver = lambda text: False,
) -> list[Text]:
    """Continue prompts of any lengths, as one batch; what follows one does not depend on the others.

    The model is a GPTModel, or this rank's stage of one, and sees the last --seq-length tokens. Ranks that compute
    together call this alike and get the same: those of a tensor- and pipeline-parallel copy and, with expert
    parallelism or ZeRO stage 3, all; other replicas ask for what they like. is_over: called with each text whenever it
    gets a token, on all ranks. Raises ValueError on all of them where ranks that compute together differ.
    """
    check(model, prompts, asked.max_new_tokens)
    texts = [Text(list(prompt)) for prompt in prompts]
    check_alike(model, ([text.prompt for text in texts], asked))
    generators = [asked.sampling.generator(number) for number in range(len(texts))]
    longest = max(len(text.prompt) for text in texts) + asked.max_new_tokens
    with inference(model):
        forward = Forward(model, longest, use_cache=asked.use_cache)
        for _ in range(asked.max_new_tokens):
            if all(text.is_over for text in texts):
                break
            drawn = _drawn(forward([text.ids for text in texts]), texts, generators, asked.sampling)
            for text, (token, logprob) in zip(texts, drawn, strict=True):
                _add(text, int(token), float(logprob), asked, is_over)
    return texts


@contextmanager
def inference(model: nn.Cell) -> Iterator[None]:
    """Within the block the model is not in training and nothing is recorded; after it all is as it was."""
    was_training = model.training
    model.set_train(False)
    try:
        with no_grad():
            yield
    finally:
        model.set_train(was_training)


def _drawn(
    logits: Array | None, texts: Sequence[Text], generators: Sequence[np.random.Generator], sampling: Sampling
) -> Array:
    """float32 [b, 2], each text's token and the logarithm of its probability: the last stage's, on all stages."""
    drawn = np.zeros((len(texts), 2), np.float32)
    if logits is not None:
        for number, (text, row, generator) in enumerate(zip(texts, logits, generators, strict=True)):
            if not text.is_over:
                token = sampling.next_token(row, generator, text.ids)
                drawn[number] = token, log_probability(row, token)
    group = parallel_state.get_pipeline_model_parallel_group()
    return group.broadcast(Tensor(drawn), group.size - 1).asnumpy()


def _add(text: Text, token: int, logprob: float, asked: Asked, is_over: IsOver) -> None:
    if text.is_over:
        return
    if token in asked.ends:
        text.is_over = True
        return
    text.new.append(token)
    text.logprobs.append(logprob)
    text.is_over = is_over(text)
