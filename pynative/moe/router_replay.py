"""Routing replay: the experts that a forward chose are recorded by token, and a training sends the tokens to them.

A model that generated a text and one that is trained on it score experts with other rounding, or have other weights, so
that they may choose others (Megatron's `--moe-enable-routing-replay`). L layers of experts, in the model's order; k
experts of a token, s tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from mindspore import Tensor

from parallel_core.batch.micro_batches import LABELS, LOSS_MASK, POSITION_IDS, ROUTED_EXPERTS, TOKENS
from parallel_core.config import ModelConfig
from parallel_core.moe.token_dispatch import NONE
from parallel_core.numerics.dtypes import Array
from parallel_core.step_figures import decoder_layers_of_experts
from pynative import parallel_state
from pynative.local import Local


class RoutingRecord:
    """The experts that each token of some texts went to when it was first computed.

    It is filled by one call of `generate_texts(..., record=RoutingRecord(model.config))`. -1 stands for tokens that
    were not computed, and for layers whose experts a table (hash layers) or SparseMixer gives. Each pipeline stage
    records its own layers; `whole` returns those of all stages.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._layers = {layer + 1: place for place, layer in enumerate(decoder_layers_of_experts(config))}
        self._topk = config.moe_config.moe_router_topk
        self._of_forward: dict[int, Array] = {}
        self._texts: list[Array] = []

    @contextmanager
    def of_forward(self, firsts: Sequence[int], counts: Sequence[int]) -> Iterator[None]:
        """Record what routers choose within the block, in a forward whose row i has counts[i] tokens of text i, from
        its position firsts[i] on; known choices stay."""
        self._of_forward = {}
        with _current.holding(self):
            yield
        for text, (first, count) in enumerate(zip(firsts, counts, strict=True)):
            self._grow(text, first + count)
            known = self._texts[text][first : first + count]
            for place, chosen in self._of_forward.items():
                new = known[:, place]
                known[:, place] = np.where(new == NONE, chosen[:count, text], new)

    def _grow(self, text: int, length: int) -> None:
        while len(self._texts) <= text:
            self._texts.append(np.empty((0, len(self._layers), self._topk), np.int32))
        missing = length - len(self._texts[text])
        if missing > 0:
            new = np.full((missing, *self._texts[text].shape[1:]), NONE, np.int32)
            self._texts[text] = np.concatenate([self._texts[text], new])

    def chosen(self, layer_number: int, experts: Array) -> None:
        """Take the choices [s, b, k] of the forward under way from the layer with this global number, from 1."""
        if layer_number in self._layers:
            self._of_forward[self._layers[layer_number]] = experts

    def whole(self) -> list[Array]:
        """The choices of each text, int32 [s, L, k], with those of all pipeline stages, which all call this."""
        group = parallel_state.get_pipeline_model_parallel_group()
        return [group.all_reduce(Tensor.from_numpy(text), op="max").asnumpy() for text in self._texts]


_current: Local[RoutingRecord | None] = Local(None)


def recording() -> RoutingRecord | None:
    """The record that routers are to give their choices to; None: there is none."""
    return _current.value


def checked(experts: Array, tokens: Sequence[int], config: ModelConfig) -> Array:
    """`experts` [b, s, L, k] as given, L layers of experts, k of a token. Raises ValueError unless their shape fits
    `tokens` = (b, s), and they are signed integers: numbers of experts, or -1 where the router chooses."""
    moe = config.moe_config
    wanted = (*tokens, len(decoder_layers_of_experts(config)), moe.moe_router_topk)
    if experts.shape != wanted:
        layers = "rows, tokens, layers that have experts, --moe-router-topk"
        raise ValueError(f"{ROUTED_EXPERTS} has shape {list(experts.shape)}, must have {list(wanted)}: {layers}")
    if experts.dtype.kind != "i" or experts.min() < NONE or experts.max() >= moe.num_choices:
        rule = f"must be integers, numbers of experts below {moe.num_choices}, or -1, where the router chooses"
        raise ValueError(f"{ROUTED_EXPERTS} has {experts.dtype} from {experts.min()} to {experts.max()}: {rule}")
    return experts


def save_routing(path: str | Path, texts: Sequence[Sequence[int]], experts: Sequence[Array]) -> None:
    """Write the tokens of texts, and their experts [s, L, k], to an .npz file, one text behind the other; -1 where a
    text's last tokens have no experts."""
    lengths = np.array([len(text) for text in texts], np.int32)
    of_all = [
        np.concatenate([own, np.full((n - len(own), *own.shape[1:]), NONE, np.int32)])
        for own, n in zip(experts, lengths, strict=True)
    ]
    tokens = np.concatenate([np.array(text, np.int32) for text in texts])
    with open(path, "wb") as file:
        np.savez(file, lengths=lengths, tokens=tokens, experts=np.concatenate(of_all))


class ReplayedTexts:
    """A data set of the texts in a file of `save_routing`, with their tokens' experts. Of each text the first
    seq_length + 1 tokens are taken; all of these but the last, which is only a label, are padded to a sample of
    seq_length tokens.

    The router chooses for padding, and for tokens of which no expert was recorded (-1).
    """

    def __init__(self, path: str | Path, seq_length: int) -> None:
        with np.load(path) as arrays:
            self._tokens, self._experts = arrays["tokens"], arrays["experts"]
            self._ends = np.cumsum(arrays["lengths"])
        self._length = seq_length

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, i: int) -> Mapping[str, Array]:
        """Text i as a sample: tokens, each labelled with the next, a loss mask that is 0 in the padding, positions and
        experts."""
        stop = int(self._ends[i])
        start = int(self._ends[i - 1]) if i else 0
        tokens, experts = (x[start : min(stop, start + self._length + 1)] for x in (self._tokens, self._experts))
        count = len(tokens[:-1])  # 0 of an empty text
        return {
            TOKENS: self._padded(tokens[:-1], 0),
            LABELS: self._padded(tokens[1:], 0),
            LOSS_MASK: self._padded(np.ones(count, np.float32), 0),
            POSITION_IDS: np.arange(self._length, dtype=np.int32),
            ROUTED_EXPERTS: self._padded(experts[:-1], NONE),
        }

    def _padded(self, array: Array, filling: int) -> Array:
        missing = np.full((self._length - len(array), *array.shape[1:]), filling, array.dtype)
        return np.concatenate([array, missing])
