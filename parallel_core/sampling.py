"""The next token from its logits."""

import numpy as np


def check_sampling(temperature: float, top_k: int, top_p: float) -> None:
    """Raise ValueError for a way of sampling that there isn't."""
    if temperature < 0:
        raise ValueError(f"--temperature {temperature}: must be 0 (always the likeliest token) or more")
    if top_k < 0:
        raise ValueError(f"--top-k {top_k}: must be 0 (all tokens) or more")
    if not 0 <= top_p <= 1:
        raise ValueError(f"--top-p {top_p}: must lie between 0 (off) and 1")


def next_token(
    logits: np.ndarray, generator: np.random.Generator, temperature: float, top_k: int = 0, top_p: float = 0.0
) -> int:
    """logits [v] -> a token: the likeliest at temperature 0, else one drawn from softmax(logits / temperature).

    `top_k` first leaves the k likeliest, `top_p` then the fewest that together have that probability (nucleus sampling,
    Holtzman et al., 2019). 0 turns either off.
    """
    if temperature == 0:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")[: top_k or None]
    scaled = logits[order].astype(np.float64) / temperature
    probabilities = np.exp(scaled - scaled[0])
    probabilities /= probabilities.sum()
    if top_p:
        before = probabilities.cumsum() - probabilities
        probabilities = np.where(before < top_p, probabilities, 0.0)
        probabilities /= probabilities.sum()
    return int(generator.choice(order, p=probabilities))
