"""`generate --chat`: a conversation line by line, its template, and the tokenizer that flags choose."""

import io
from pathlib import Path

import pytest

from parallel_core.data.from_config import tokenizer_options
from parallel_core.data.tokenizers import MegatronTokenizer
from parallel_core.data.tokenizers.base import Facts, TokenizerOptions
from tests.support.checkpoint_cases import unpack
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job


class Letters(MegatronTokenizer):
    """A tokenizer of ids 1 ... 60, one a letter; its chat template joins the messages, which `asked` keeps."""

    def __init__(self) -> None:
        super().__init__(Facts(61))
        self.asked: list[list[dict]] = []

    def tokenize(self, text):
        return [ord(letter) % 60 + 1 for letter in text]

    def detokenize(self, token_ids):
        return "".join(chr(64 + token) for token in token_ids)

    def apply_chat_template(self, messages, add_generation_prompt=False, **variables):
        self.asked.append([dict(message) for message in messages])
        return self.tokenize("".join(message["content"] for message in messages))

    @property
    def vocab(self):
        return {}


def chatted(backend, lines: str) -> tuple[str, list]:
    """(output, conversations that the chat template was given) of a session that is typed these lines."""
    from pynative.generation import Asked
    from pynative.generation.session import Session
    from pynative.parameter import initialize_parameters
    from pynative.transformer.gpt_model import GPTModel

    config, tokenizer, patch = config_of(TINY, 1), Letters(), pytest.MonkeyPatch()
    with job(backend, config), patch.context() as patched:
        model = GPTModel(config.model_config)
        initialize_parameters(model, 1)
        patched.setattr("sys.stdin", io.StringIO(lines))
        patched.setattr("sys.stdout", io.StringIO())
        import sys

        Session(model, tokenizer, Asked(3), ()).chat()
        return sys.stdout.getvalue(), tokenizer.asked


def test_answers_are_part_of_the_conversation():
    """The second question's template has the first question and its answer; an empty line is no message, and the end of
    input ends the session."""
    printed, asked = run(1, chatted, "hi\n\nmore\n")[0]
    first, second = (line for line in printed.replace("> ", "").split("\n") if line)
    assert len(first) == len(second) == 3
    user = {"role": "user", "content": "hi"}
    assert asked == [[user], [user, {"role": "assistant", "content": first}, {"role": "user", "content": "more"}]]


def template_error(backend, *words: str) -> str:
    """The error about --prompt-type that `generate` with these words raises."""
    from pynative.generation.options import parse, template_of

    with pytest.raises(ValueError) as error:
        template_of(parse(["--load", "x", *words]), Letters())
    return str(error.value)


def test_a_template_is_one_of_the_table_and_for_chats():
    """--prompt-type without --chat, where it has no effect, and with an unknown name is an error."""
    assert "add --chat" in run(1, template_error, "--prompt", "x", "--prompt-type", "qwen")[0]
    assert "choose one of" in run(1, template_error, "--prompt", "x", "--chat", "--prompt-type", "qwem")[0]


def tokenizer_named(backend, folder: Path, *words: str) -> TokenizerOptions:
    """The tokenizer options that `generate` uses for a checkpoint folder and these flags."""
    from pynative.generation.options import configured, parse

    return tokenizer_options(configured(parse(["--load", str(folder), "--device-target", "CPU", *words])))


def test_every_tokenizer_flag_reaches_the_tokenizer(tmp_path):
    """Each tokenizer flag of `generate` arrives in the tokenizer options: a default in its place would encode prompts
    as the model was never trained."""
    folder = unpack("hf/llama", tmp_path)
    settings = [
        "--legacy-tokenizer",
        "--vocab-extra-ids",
        "4",
        "--tiktoken-pattern",
        "v1",
        "--tokenizer-kwargs",
        "a",
        "b",
    ]
    named = run(1, tokenizer_named, folder, "--tokenizer-type", "TikTokenizer", *settings)[0]
    assert (named.tokenizer_type, named.legacy_tokenizer, named.vocab_extra_ids) == ("TikTokenizer", True, 4)
    assert (named.tiktoken_pattern, named.tokenizer_kwargs) == ("v1", ("a", "b"))
    patched = run(1, tokenizer_named, folder, "--patch-tokenizer-type", "Qwen2Tokenizer")[0]
    assert (patched.tokenizer_type, patched.tokenizer_model) == ("PretrainedFromHF", str(folder))


def test_flags_without_a_type_do_not_drop_a_folders_tokenizer(tmp_path):
    """--tokenizer-kwargs alone go to the tokenizer of the folder --load, --tokenizer-model names another folder's;
    where no folder has one, and for --vocab-file, the type is asked for."""
    folder, other = unpack("hf/llama", tmp_path), tmp_path / "other"
    with pytest.raises(ValueError, match=r"--tokenizer-kwargs .* add --tokenizer-type"):
        run(1, tokenizer_named, folder, "--tokenizer-kwargs", "a", "b")
    other.mkdir()
    for place in (folder, other):
        (place / "tokenizer.json").write_text("{}")
    own = run(1, tokenizer_named, folder, "--tokenizer-kwargs", "a", "b")[0]
    assert (own.tokenizer_type, own.tokenizer_model) == ("HuggingFaceTokenizer", str(folder))
    assert own.tokenizer_kwargs == ("a", "b")
    others = run(1, tokenizer_named, folder, "--tokenizer-model", str(other))[0]
    assert (others.tokenizer_type, others.tokenizer_model) == ("HuggingFaceTokenizer", str(other))
    with pytest.raises(ValueError, match=r"--vocab-file .* add --tokenizer-type"):
        run(1, tokenizer_named, folder, "--vocab-file", "v.json")


def test_the_vocabularys_size_is_the_models(capsys):
    """`generate --vocab-size` is refused as unknown, since the checkpoint's model decides the size."""
    from pynative.generation.options import parse

    with pytest.raises(SystemExit) as ended:
        parse(["--load", "x", "--prompt", "y", "--vocab-size", "3"])
    assert ended.value.code == 2 and "--vocab-size" in capsys.readouterr().err
