"""The choice of the next token from its logits, and the options of a continuation."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from parallel_core.findings import ConfigError, Finding
from parallel_core.numerics.dtypes import Array


@dataclass(frozen=True)
class Sampling:
    """The choice of the next token: the likeliest at temperature 0, else one drawn from softmax(logits / temperature)
    among the tokens that `top_k` and then `top_p` leave. By default the repetition penalty, top-k and top-p are off.
    Raises ConfigError for options out of their bounds."""

    temperature: float = 0.0
    """The divisor of the logits: above 1 the unlikely are drawn more often, below 1 the likely; 0: always the likeliest
    token."""
    top_k: int = 0
    """Draw from so many of the likeliest tokens only; 0: from all."""
    top_p: float = 0.0
    """Draw from the fewest of the likeliest tokens that together have at least this probability (nucleus sampling,
    Holtzman et al., 2019), after `top_k` has left out others; 0: from all."""
    repetition_penalty: float = 1.0
    """Logits of tokens that the text has already are divided by it, negative ones multiplied (CTRL, Keskar et al.,
    2019)."""
    seed: int = 0
    """Seed of the random draws."""

    def __post_init__(self) -> None:
        found = [
            Finding(flag, value, rule, "change it")
            for flag, value, holds, rule in (
                ("--temperature", self.temperature, self.temperature >= 0, "must be 0 (the likeliest token) or more"),
                ("--top-k", self.top_k, self.top_k >= 0, "must be 0 (all tokens) or more"),
                ("--top-p", self.top_p, 0 <= self.top_p <= 1, "must lie between 0 (off) and 1"),
                (
                    "--repetition-penalty",
                    self.repetition_penalty,
                    self.repetition_penalty > 0,
                    "must be above 0; 1 is none",
                ),
                ("--seed", self.seed, self.seed >= 0, "must be 0 or more"),
            )
            if not holds
        ]
        if found:
            raise ConfigError(found)

    def generator(self, text: int = 0) -> np.random.Generator:
        """The generator of a text's draws; text: its number in the batch. The draws depend on no other text."""
        return np.random.Generator(np.random.Philox(self.seed).jumped(text))

    def next_token(self, logits: Array, generator: np.random.Generator, text: Sequence[int] = ()) -> int:
        """The id of the next token. logits: of all tokens, float32 [v]. generator: draws the token, unless the
        temperature is 0. text: ids of the text so far, to which the repetition penalty applies."""
        if self.repetition_penalty != 1.0:
            logits = self._penalized(logits, text)
        if self.temperature == 0:
            return int(logits.argmax())
        order = np.argsort(-logits, kind="stable")[: self.top_k or None]
        scaled = logits[order].astype(np.float64) / self.temperature
        probabilities = np.exp(scaled - scaled[0])
        probabilities /= probabilities.sum()
        if self.top_p:
            before = probabilities.cumsum() - probabilities
            probabilities = np.where(before < self.top_p, probabilities, 0.0)
            probabilities /= probabilities.sum()
        return int(generator.choice(order, p=probabilities))

    def _penalized(self, logits: Array, text: Sequence[int]) -> Array:
        said, penalty = np.unique(np.asarray(text, np.int64)), np.float32(self.repetition_penalty)
        logits = logits.copy()
        logits[said] = np.where(logits[said] > 0, logits[said] / penalty, logits[said] * penalty)
        return logits


@dataclass(frozen=True)
class Asked:
    """The options of the continuations of a batch's prompts; each continuation has at most `max_new_tokens` tokens.
    ends: ids that end a text and are not part of it; use_cache: whether keys and values of earlier tokens are kept,
    where the model can."""

    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    ends: frozenset[int] = frozenset()
    """Ids that end a text and are not part of it."""
    use_cache: bool = True
    """Whether keys and values of earlier tokens are kept, where the model can."""


def log_probability(logits: Array, token: int) -> float:
    """Natural logarithm of a token's probability in softmax(logits [v]): the model's own, however tokens are drawn."""
    shifted = logits - logits.max()
    return float(shifted[token] - np.log(np.exp(shifted).sum(dtype=np.float64)))
