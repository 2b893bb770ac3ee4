"""Messages of a chat, written as fine-tuning writes them: the prompt for the next answer, and the ids that end an
answer."""

from collections.abc import Sequence
from typing import Any

from parallel_core.data.instruction.conversations import Conversation
from parallel_core.data.instruction.encoding import ConversationEncoder
from parallel_core.data.instruction.templates import Template
from parallel_core.data.instruction.tokens import tokens_for
from parallel_core.data.tokenizers import MegatronTokenizer


class Chat:
    """Writer of chats as ids by a template, whose stop words are added to the tokenizer's vocabulary (`tokens_for`);
    without a template by the tokenizer's own chat template."""

    def __init__(self, template: Template | None, tokenizer: MegatronTokenizer) -> None:
        """Raises ValueError as `tokens_for`."""
        tokens = tokens_for(template, tokenizer)
        self._encoder = ConversationEncoder(template, tokens)
        words = [tokenizer.token_to_id(word) for word in (template.stop_words if template else ())]
        self.ends = frozenset(word for word in (tokens.end, *words) if word is not None)
        """Ids that end an answer."""

    def prompt(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """The ids of a conversation up to the place where the assistant answers the last message; of one of about
        100,000 tokens or more only a part.

        messages: dictionaries with role and content. Raises ValueError unless they are of user and assistant in turn,
        behind at most one of the system, and end with the user's, or if the template cannot write them.
        """
        has_system = bool(messages) and messages[0]["role"] == "system"
        turns = list(messages[has_system:])
        if [turn["role"] for turn in turns] != [("user", "assistant")[n % 2] for n in range(len(turns) | 1)]:
            raise ValueError("messages must be the user's and the assistant's in turn, and end with the user's")
        conversation = Conversation(
            turns, [{"role": "assistant", "content": ""}], system=messages[0]["content"] if has_system else ""
        )
        *before, (asked, _) = self._encoder.pairs(conversation)
        return [token for source, target in before for token in (*source, *target)] + asked

    def pair(self, question: str, answer: str) -> tuple[list[int], list[int]]:
        """(ids of a question, up to the place where the answer begins; ids of the answer, of the texts and tokens that
        fine-tuning with the template puts behind it, and, for a template of `efficient_eos`, of the end of a text). Of
        a question and answer of about 100,000 tokens or more together there is only a part. Raises ValueError if the
        template cannot write them."""
        messages = {"role": "user", "content": question}, {"role": "assistant", "content": answer}
        ((asked, answered),) = self._encoder.pairs(Conversation([messages[0]], [messages[1]]))
        end = self._encoder.end
        return list(asked), [*answered, *([] if end is None else [end])]
