"""The forward of generation: the logits of the next token of each text of a batch, over all ranks that share a model.

s sequence, b batch, h hidden, v vocabulary.
"""

from collections.abc import Sequence
from functools import cached_property

import mindspore
import numpy as np
from mindspore import Tensor, nn

from parallel_core.attention.rotary import Rotary
from parallel_core.context import SequenceLayout
from parallel_core.numerics.dtypes import Array
from pynative import kernels, parallel_state
from pynative.collectives import Group
from pynative.generation.host_layers import Decoder
from pynative.kernels.host.threads import awake
from pynative.key_value_cache import Cache, generating
from pynative.moe.router_replay import RoutingRecord
from pynative.parameter import type_of

Texts = Sequence[Sequence[int]]
"""Token ids of the texts of a batch, of any lengths."""


class Forward:
    """Forwards of a model over a batch of texts that grow by at most a token each time.

    With a cache the first forward is of whole texts and later ones are of each text's last token alone, as long as no
    text is longer than `longest` or the model's sequence; where the longest text's length changes the rotary
    frequencies, one is of whole texts again. Beyond these lengths, and without a cache, each is of every text's last
    tokens, at most as many as the model's sequence has.

    Args:
        model: a GPTModel, or this stage of one.
        longest: the most tokens that a text will have.
        use_cache: whether to keep keys and values; none are kept where sequence parallelism cuts sequences over several
            ranks, and with sparse attention.
        record: is given the experts that tokens go to; None: nothing is recorded.
    """

    def __init__(
        self, model: nn.Cell, longest: int, *, use_cache: bool = True, record: RoutingRecord | None = None
    ) -> None:
        self.model, self.config = model, model.config
        self.window = self.config.seq_length
        self.shards = SequenceLayout.of(self.config.parallel_config).size
        caches = use_cache and self.shards == 1 and not self.config.sparse_attention.enabled
        self.cache = Cache(min(longest, self.window)) if caches else None
        self._decoder: Decoder | None = None
        self._record = record
        self._rotary = Rotary.of_model(self.config)

    def __call__(self, texts: Texts) -> Array | None:
        """The logits of each text's next token, float32 [b, ids of the tokenizer], the same on all ranks of the last
        stage; None on other stages. All ranks of the model call this with the same texts."""
        lengths = np.array([len(text) for text in texts], np.int32)
        if self.cache is not None and lengths.max() > self.cache.capacity:
            self.cache = None
        elif self.cache is not None and self._turns_otherwise(self.cache.lengths, lengths):
            self.cache, self._decoder = Cache(self.cache.capacity), None
        with generating(self.cache):
            if self.cache is None:
                return self._recorded([text[-self.window :] for text in texts], lengths)
            self.cache.begin(lengths)
            return self._recorded([text[-1:] for text in texts] if self.cache.continues else texts, lengths)

    def _recorded(self, texts: Texts, lengths: Array) -> Array | None:
        """The logits of each text's next token, as `_through` gives them, for `texts`, the last tokens of texts of
        these lengths, with the experts that they go to on record."""
        if self._record is None:
            return self._through(texts)
        counts = [len(text) for text in texts]
        with self._record.of_forward([*(lengths - counts)], counts):
            return self._through(texts)

    def _turns_otherwise(self, before: Array, lengths: Array) -> bool:
        """Whether the rotary frequencies for texts of these lengths differ from those for the lengths `before`, so that
        cached keys are wrong."""
        if self._rotary is None or not before.size:
            return False
        return self._rotary.of_text(int(before.max())) != self._rotary.of_text(int(lengths.max()))

    def _through(self, texts: Texts) -> Array | None:
        """The logits of each text's next token, float32 [b, ids of the tokenizer], on the last stage; None on others.
        The stage receives hidden states from the stage before, if any, and sends its own to the next."""
        longest = max(map(len, texts))
        # Sequence parallelism needs equal shards: padding comes after the last token, where no query sees it.
        tokens = np.zeros((len(texts), longest + -longest % self.shards), np.int32)
        for row, text in zip(tokens, texts, strict=True):
            row[: len(text)] = text
        positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
        if self.cache is not None and self.cache.continues:
            positions = self.cache.positions.T
        group = parallel_state.get_pipeline_model_parallel_group()
        if not self.model.pre_process:
            self.model.set_input_tensor(self._received(tokens.shape, group))
        if self._on_arrays():
            return self._decoded(tokens[:, 0], group)
        ids = Tensor(tokens), Tensor(np.ascontiguousarray(positions))
        hidden_states = self.model.language_model(*ids, None)
        if not self.model.post_process:
            group.send(hidden_states, group.rank + 1)
            return None
        return self._logits(hidden_states, np.array([len(text) - 1 for text in texts]))

    def _on_arrays(self) -> bool:
        """Whether this forward is of one new token of each text, and `Decoder` can compute the layers."""
        if self.cache is None or not self.cache.continues or not self._is_plain or self._record is not None:
            return False
        if self._decoder is None:
            self._decoder = Decoder(self.model, self.cache)
        return True

    @cached_property
    def _is_plain(self) -> bool:
        on_host = kernels.active() == "host" and parallel_state.get_tensor_model_parallel_world_size() == 1
        return on_host and Decoder.can(self.model)

    def _decoded(self, tokens: Array, group: Group) -> Array | None:
        """The forward of one new token of each text, int32 [b], by `Decoder`; the next logits, float32 [b, ids of the
        tokenizer], on the last stage, None on others."""
        assert self._decoder is not None
        with awake():
            hidden_states = self._decoder(tokens)
            if self.model.post_process:
                return self._decoder.logits(hidden_states)[:, : self.config.unpadded_vocab_size]
        group.send(Tensor.from_numpy(np.ascontiguousarray(hidden_states[None])), group.rank + 1)
        return None

    def _received(self, shape: tuple[int, ...], group: Group) -> Tensor:
        """The hidden states that the previous stage sends, [s, b, h], with sequence parallelism [s/t, b, h]; the
        channels of a carried choice of keys, if any, are behind the h. shape: (b, s) of the tokens."""
        choice = self.model.language_model.decoder.received_choice
        width = self.config.residual_width + (choice.channels if choice else 0)
        rows = (shape[1] // self.shards, shape[0], width)
        return group.recv(rows, type_of(self.config.residual_dtype), group.rank - 1)

    def _logits(self, hidden_states: Tensor, last: Array) -> Array:
        """The logits [b, ids of the tokenizer] at positions `last` [b] of the texts, from hidden states [s, b, h]."""
        texts = len(last)
        if self.shards == 1:  # only these rows go through the head
            rows = (last * texts + np.arange(texts)).astype(np.int32)
            hidden_states = kernels.gather_rows(hidden_states, rows, (hidden_states.shape[-1],)).expand_dims(0)
            last = np.zeros(texts, np.int64)
        logits = self.model._logits(hidden_states, parallel_output=False).astype(mindspore.float32).asnumpy()
        # Rows beyond the tokenizer's ids are padding.
        return logits[last, np.arange(texts), : self.config.unpadded_vocab_size]
