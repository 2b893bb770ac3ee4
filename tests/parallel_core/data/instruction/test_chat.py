"""`Chat`, the prompt of a conversation for generation: its ids are those that fine-tuning's data have before the
answer."""

import pytest

from parallel_core.data.instruction.chat import Chat
from parallel_core.data.instruction.conversations import Conversation
from parallel_core.data.instruction.encoding import ConversationEncoder
from parallel_core.data.instruction.handlers import instruction
from parallel_core.data.instruction.setting import Setting
from parallel_core.data.instruction.templates import load_template
from parallel_core.data.instruction.tokens import tokens_for
from parallel_core.data.tokenizers import TokenizerOptions, build_tokenizer
from tests.support.instruction import inputs

FIRST = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."}]
LAST = {"role": "user", "content": "Who are you?"}
SYSTEM = {"role": "system", "content": "Be kind."}


def made(name: str):
    """The tokenizer of the template `name`: Llama 3's for llama3, else Qwen2's."""
    folder = inputs() / "tokenizers" / ("hf_llama3" if name == "llama3" else "hf_qwen2")
    return build_tokenizer(TokenizerOptions("PretrainedFromHF", tokenizer_model=str(folder)))


@pytest.mark.parametrize("name", ["qwen", "qwen_lf", "qwen3", "llama3", "default", "empty"])
@pytest.mark.parametrize("messages", [[LAST], [SYSTEM, *FIRST, LAST]])
def test_the_prompt_is_the_sources_of_the_data(name, messages):
    """The prompt of messages is all that a training record of the same turns has in front of its last answer, for each
    template, with and without a system text."""
    template, tokenizer = load_template(name), made(name)
    chat = Chat(template, tokenizer)
    encoder = ConversationEncoder(template, tokens_for(template, tokenizer))
    system, turns = ("Be kind.", messages[1:]) if messages[0] is SYSTEM else ("", messages)
    answer = {"role": "assistant", "content": "A model."}
    *before, (last, target) = encoder.pairs(Conversation(list(turns), [answer], system=system))
    assert chat.prompt(messages) == [*(token for pair in before for part in pair for token in part), *last]
    assert target[-1] in chat.ends or name in ("empty", "qwen_lf", "qwen3")


@pytest.mark.parametrize("name", ["qwen", "llama3", "gemma", "baichuan2"])
def test_a_pair_is_what_fine_tuning_learns(name):
    """Question and answer of `pair` are a training record's ids, the answer its labels: also the end of a text, which
    stands behind the answer with templates of `efficient_eos` (gemma, baichuan2), and is among `ends`."""
    template, tokenizer = load_template(name), made(name)
    chat, tokens = Chat(template, tokenizer), tokens_for(template, tokenizer)
    asked, answered = chat.pair("Hello", "Hi.")
    sets = instruction(Conversation(FIRST[:1], FIRST[1:]), Setting(tokens, ConversationEncoder(template, tokens)))
    assert sets["input_ids"] == [asked + answered]
    assert [label for label in sets["labels"][0] if label != -100] == answered and answered[-1] in chat.ends


def test_the_stop_word_ends_an_answer():
    """Llama 3's <|eot_id|>, which is not the tokenizer's end of text, is among the ids that end an answer."""
    tokenizer = made("llama3")
    assert tokenizer.token_to_id("<|eot_id|>") in Chat(load_template("llama3"), tokenizer).ends


@pytest.mark.parametrize("messages", [[], FIRST, [LAST, LAST], [SYSTEM], [LAST, SYSTEM]])
def test_messages_out_of_turn_are_refused(messages):
    """Messages that are empty, end with the assistant, have two of one role in a row, or a system text alone or later,
    are an error."""
    with pytest.raises(ValueError, match="in turn"):
        Chat(load_template("qwen"), made("qwen")).prompt(messages)
