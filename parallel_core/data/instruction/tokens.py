"""A tokenizer as a template needs it: with a stop word as the end of text, and further special tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parallel_core.data.instruction.templates import NamedToken, RoleToken, Slot, Template
from parallel_core.data.tokenizers import MegatronTokenizer

END_OF_TEXT = "<|endoftext|>"
"""The token that is added as the end of text to a tokenizer that has none."""


@dataclass(frozen=True)
class ConversationTokens:
    """A tokenizer that encodes the slots of a template. bos, end, padding: the ids that begin a text, that end it, and
    of padding, None without one; named: name -> id of the tokens that the template names."""

    tokenizer: MegatronTokenizer
    bos: int | None
    end: int | None
    """The id that ends a text; None: there is none."""
    padding: int | None
    """The id of padding; None: there is none, or (with a template) only the end of a text in its place."""
    named: dict[str, int]
    """Name -> id of the tokens that the template names."""

    @property
    def eos(self) -> int:
        """The id that ends a text. Raises ValueError if there is none."""
        if self.end is None:
            raise ValueError("the tokenizer has no token that ends a text; give another tokenizer")
        return self.end

    @property
    def pad(self) -> int:
        """The id of padding: the end of a text where the tokenizer has none of its own. Raises ValueError if there is
        neither."""
        return self.eos if self.padding is None else self.padding

    def encode(self, slots: Sequence[Slot]) -> list[int]:
        """The ids of slots, each text on its own and without the tokens that the tokenizer puts around texts."""
        ids: list[int] = []
        for slot in slots:
            if isinstance(slot, str):
                ids += self.tokenizer.encode(slot) if slot else []
            elif isinstance(slot, NamedToken):
                ids.append(self.named[slot.name])
            elif isinstance(slot, RoleToken):
                token = self.end if slot.role == "eos" else self.bos
                ids += [] if token is None else [token]
        return ids

    def chat(self, messages: Sequence[dict[str, Any]], is_asked: bool, **variables: Any) -> list[int]:
        """The ids of messages as the tokenizer's own template writes them. is_asked: up to the place where an answer
        begins. variables: further variables of the template. Raises as `MegatronTokenizer.apply_chat_template`."""
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt=is_asked, **variables)


def tokens_for(template: Template | None, tokenizer: MegatronTokenizer) -> ConversationTokens:
    """`tokenizer` as a template needs it: the template's stop words, and `END_OF_TEXT` if there is no end of text, are
    added to its vocabulary, in place, unless it has them. With `replace_eos` the first stop word is the end of text.
    template: None where the tokenizer's own template writes the messages; nothing is added then.

    Raises ValueError for a token that the template names, if the vocabulary has neither it nor an unknown token; and
    for a template with stop words, or a tokenizer without an end of text, if the tokenizer takes no further tokens.
    """
    if template is None:
        return ConversationTokens(tokenizer, tokenizer.bos, tokenizer.eos, tokenizer.pad, {})
    stop_words = list(template.stop_words)
    eos = _added(tokenizer, stop_words.pop(0)) if template.replace_eos else tokenizer.eos
    if eos is None:
        eos = _added(tokenizer, END_OF_TEXT)
    if stop_words:
        tokenizer.add_special_tokens(stop_words)
    named = {name: _named(tokenizer, name, template) for name in sorted(template.named_tokens)}
    return ConversationTokens(tokenizer, tokenizer.bos, eos, None if tokenizer.pads_with_eos else tokenizer.pad, named)


def _added(tokenizer: MegatronTokenizer, token: str) -> int:
    tokenizer.add_special_tokens([token])
    added = tokenizer.token_to_id(token)
    assert added is not None, token
    return added


def _named(tokenizer: MegatronTokenizer, name: str, template: Template) -> int:
    token = tokenizer.token_to_id(name)
    token = tokenizer.unk if token is None else token
    if token is None:
        raise ValueError(
            f"--prompt-type {template.name} writes the token {name}, which the tokenizer does not have; choose the "
            "tokenizer of the model that the template is for"
        )
    return token
