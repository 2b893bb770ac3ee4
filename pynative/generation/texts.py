"""Generation of texts with a trained model, one token of each text at a time."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from parallel_core.data.tokenizers import MegatronTokenizer
from parallel_core.numerics.dtypes import Array
from parallel_core.sampling import Asked, Sampling, log_probability
from pynative import parallel_state
from pynative.generation.forward import Forward
from pynative.moe.router_replay import RoutingRecord
from pynative.tape.autograd import no_grad


def check(model: nn.Cell, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    """Raise ValueError if the layout has context parallelism or virtual stages, if there is no prompt, if a prompt
    (token ids) is empty or not of the model's vocabulary, or if no new token is asked for."""
    context = parallel_state.get_context_parallel_world_size()
    if context > 1:
        raise ValueError(
            f"--context-parallel-size {context}: text is generated on whole sequences; use 1, which loads any "
            f"checkpoint"
        )
    chunks = parallel_state.get_virtual_pipeline_model_parallel_world_size() or 1
    if chunks > 1:
        raise ValueError(
            f"--virtual-pipeline-model-parallel-size {chunks}: text is generated on stages of one chunk; leave it out, "
            f"any layout loads any checkpoint"
        )
    if max_new_tokens < 1:
        raise ValueError(f"--max-new-tokens {max_new_tokens}: must be at least 1")
    if not prompts or not all(prompts):
        raise ValueError("--prompt: needs at least one token")
    ids = model.config.unpadded_vocab_size
    wrong = [token for prompt in prompts for token in prompt if not 0 <= token < ids]
    if wrong:
        raise ValueError(f"--prompt: token {wrong[0]} is not among the model's {ids} ids; is it another tokenizer's?")


def check_alike(model: nn.Cell, asked: Sequence[Any]) -> None:
    """Raise ValueError if ranks that compute a batch together were given different arguments `asked`, compared as JSON,
    arrays whole: with expert parallelism or ZeRO stage 3 all ranks, else those of one tensor- and pipeline-parallel
    copy of the model. All of them call this."""
    gathers_weights = any(parameter.meta.is_cut for parameter in model.trainable_params())
    if gathers_weights or parallel_state.get_expert_model_parallel_world_size() > 1:
        group = parallel_state.get_world_group()
    else:
        group = parallel_state.get_model_parallel_group()
    digest = np.frombuffer(sha256(json.dumps(asked, default=_plain).encode()).digest(), np.int32)[None]
    digests = group.all_gather(Tensor(digest), axis=0).asnumpy()
    if (digests != digests[0]).any():
        raise ValueError(
            "generate: ranks that compute a text together ask for different ones (tokens, lengths or ways of drawing); "
            "call it alike on all of them"
        )


def _plain(value: Any) -> Any:
    """An array, a set or an object with fields as lists and dictionaries, whole: `repr` leaves the middle of a long
    array out."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return sorted(value) if isinstance(value, frozenset) else vars(value)


@dataclass
class Text:
    """A prompt and its continuation `new`, as token ids, without the id that ended it, if one did. logprobs: of each id
    in `new` the natural logarithm of its probability by the model's logits, whatever the sampling options; is_over:
    whether an id or the caller ended the text."""

    prompt: list[int]
    new: list[int] = field(default_factory=list)
    """The ids of the continuation; one that ends a text (`Asked.ends`) is left out."""
    logprobs: list[float] = field(default_factory=list)
    """Natural logarithm of the probability of each id in `new`, by the model's logits alone, without the sampling
    options."""
    is_over: bool = False
    """Whether an end has come: an id of `Asked.ends`, or the caller's `is_over`. A text that has as many tokens as are
    asked for may be without."""

    @property
    def ids(self) -> list[int]:
        """The ids of the prompt, and behind them those of the continuation."""
        return self.prompt + self.new


IsOver = Callable[[Text], bool]
"""A function that says whether a text, which has just got a token, is complete."""


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
    """The ids that follow `tokens`: at most `max_new_tokens`, fewer if `end_of_document` comes (it is left out).

    See `generate_texts`; for the sampling options `parallel_core.sampling.Sampling`, for use_cache `Asked`. Raises
    ValueError as `generate_texts` does, and for a sampling option out of range.
    """
    sampling = Sampling(temperature, top_k, top_p, repetition_penalty, seed)
    ends = frozenset() if end_of_document is None else frozenset({end_of_document})
    return generate_texts(model, [tokens], Asked(max_new_tokens, sampling, ends, use_cache))[0].new


def generate_texts(
    model: nn.Cell,
    prompts: Sequence[Sequence[int]],
    asked: Asked,
    is_over: IsOver = lambda text: False,
    record: RoutingRecord | None = None,
) -> list[Text]:
    """Continue prompts of any lengths as one batch. But for rounding, a continuation does not depend on the other
    prompts' tokens, except under rotary scaling of type longrope, whose frequencies follow the longest text; random
    draws depend on the seed and on a prompt's place in the batch.

    The model is a GPTModel, or this rank's stage of one, and sees the last --seq-length tokens. Ranks that compute
    together call this with the same arguments and get the same: those of one tensor- and pipeline-parallel copy of the
    model and, with expert parallelism or ZeRO stage 3, all; other replicas may ask for other texts. is_over: called
    with each text whenever it gets a token, on all ranks. record: is given the experts that tokens go to. Raises
    ValueError where prompts or `asked` of ranks that compute together differ, and for what `check` refuses.
    """
    check(model, prompts, asked.max_new_tokens)
    texts = [Text(list(prompt)) for prompt in prompts]
    check_alike(model, ([text.prompt for text in texts], asked))
    generators = [asked.sampling.generator(number) for number in range(len(texts))]
    longest = max(len(text.prompt) for text in texts) + asked.max_new_tokens
    with inference(model):
        forward = Forward(model, longest, use_cache=asked.use_cache, record=record)
        for _ in range(asked.max_new_tokens):
            if all(text.is_over for text in texts):
                break
            drawn = _drawn(forward([text.ids for text in texts]), texts, generators, asked.sampling)
            for text, (token, logprob) in zip(texts, drawn, strict=True):
                _add(text, int(token), float(logprob), asked, is_over)
    return texts


@contextmanager
def inference(model: nn.Cell) -> Iterator[None]:
    """Context in which the model is not in training and the tape records nothing; at its end the tape gets its earlier
    setting, and the model and all of its cells the mode (training or not) that the model itself had before."""
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
    """float32 [b, 2]: each text's next token and the logarithm of its probability, drawn on the last stage and sent to
    all stages; 0 and 0 for a text that is complete."""
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


INCOMPLETE = "\ufffd"
"""The character that a tokenizer writes for the first bytes of a character whose other bytes are still to come."""


class Decoded:
    """The words of continuations while they are generated.

    Args:
        stops: words that end a text; they and what follows them are left out.
        write: called with each new piece of the text; incomplete characters at its end, and the beginning of a stop
            word, wait for later tokens. For one text at a time.
    """

    def __init__(
        self, tokenizer: MegatronTokenizer, stops: Sequence[str] = (), write: Callable[[str], None] | None = None
    ) -> None:
        self.tokenizer, self.stops, self._write = tokenizer, stops, write
        self._written = 0

    def is_over(self, text: Text) -> bool:
        """Whether a stop word is in the words of a text that has just got a token. If `write` was given, it is called
        with the new words before a stop word, but for those that may become others with later tokens."""
        if not self.stops and self._write is None:
            return False
        words = self.tokenizer.detokenize(text.new)
        end = self._end(words)
        if self._write is not None:
            self._write_until(words, self._certain(words) if end is None else end)
        return end is not None

    def finish(self, text: Text) -> str:
        """The words of a complete text, up to the first stop word; those not written yet are written, if `write` was
        given. With a stop word, ids at the end of `text` that add no words before it are removed, with their
        logprobs."""
        words = self.tokenizer.detokenize(text.new)
        end = self._end(words)
        if end is not None:
            while text.new and len(self.tokenizer.detokenize(text.new[:-1])) >= end:
                del text.new[-1], text.logprobs[-1]
            words = words[:end]
        if self._write is not None:
            self._write_until(words, len(words))
            self._written = 0
        return words

    def _end(self, words: str) -> int | None:
        """The index in the words at which the first stop word begins; None: there is none."""
        return min((place for stop in self.stops if (place := words.find(stop)) >= 0), default=None)

    def _certain(self, words: str) -> int:
        """The length of the words without incomplete characters at their end, and without the beginning of a stop
        word there."""
        words = words.rstrip(INCOMPLETE)
        held = (n for stop in self.stops for n in range(len(stop) - 1, 0, -1) if words.endswith(stop[:n]))
        return len(words) - max(held, default=0)

    def _write_until(self, words: str, end: int) -> None:
        if self._write is not None and end > self._written:
            self._write(words[self._written : end])
            self._written = end
