"""Routing replay: which experts a forward chose, kept by token, for a training that goes to the same ones.

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

    It is filled by `generate_texts(..., record=RoutingRecord(model.config))`. What follows the last token that was
    computed, and layers of another stage before `whole`, have -1.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._layers = {layer + 1: place for place, layer in enumerate(decoder_layers_of_experts(config))}
        self._topk = config.moe_config.moe_router_topk
        self._of_forward: dict[int, Array] = {}
        self._texts: list[Array] = []

    @contextmanager
    def of_forward(self, firsts: Sequence[int], counts: Sequence[int]) -> Iterator[None]:
        """Take over what routers choose within the block, of the first so many tokens of each row, which stand from
        these places of the texts on."""
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
        """Take [s, b, k] of the layer of this global number, from 1."""
        if layer_number in self._layers:
            self._of_forward[self._layers[layer_number]] = experts

    def whole(self) -> list[Array]:
        """Int32 [s, L, k] of each text, from all pipeline stages; all of them call it."""
        group = parallel_state.get_pipeline_model_parallel_group()
        return [group.all_reduce(Tensor.from_numpy(text), op="max").asnumpy() for text in self._texts]


_current: Local[RoutingRecord | None] = Local(None)


def recording() -> RoutingRecord | None:
    """The record that routers are to tell their choices."""
    return _current.value


def checked(experts: Array, tokens: Sequence[int], config: ModelConfig) -> Array:
    """A batch's experts [b, s, L, k] as they are; ValueError where they are not those of these tokens [b, s]."""
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
    """Write texts' tokens and the experts [s, L, k] of theirs, one text behind the other, as .npz."""
    lengths = np.array([len(text) for text in texts], np.int32)
    of_all = [
        np.concatenate([own, np.full((n - len(own), *own.shape[1:]), NONE, np.int32)])
        for own, n in zip(experts, lengths, strict=True)
    ]
    tokens = np.concatenate([np.array(text, np.int32) for text in texts])
    with open(path, "wb") as file:
        np.savez(file, lengths=lengths, tokens=tokens, experts=np.concatenate(of_all))


class ReplayedTexts:
    """A data set of texts with the experts of their tokens, as `save_routing` wrote them; padded to a length.

    Where no expert was recorded (-1) the router chooses.
    """

    def __init__(self, path: str | Path, seq_length: int) -> None:
        with np.load(path) as arrays:
            self._tokens, self._experts = arrays["tokens"], arrays["experts"]
            self._ends = np.cumsum(arrays["lengths"])
        self._length = seq_length

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, i: int) -> Mapping[str, Array]:
        """The text's tokens, each labelled with the next; loss counts where there is a next one."""
        stop = int(self._ends[i])
        start = int(self._ends[i - 1]) if i else 0
        tokens, experts = (x[start : min(stop, start + self._length + 1)] for x in (self._tokens, self._experts))
        count = len(tokens) - 1
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
