"""Handlers of instruction data without a recorded run, the tokenizer's own chat template, and mixtures of data sets."""

import json
from dataclasses import replace

import pytest

from parallel_core.data.indexed_dataset import IndexedDataset
from parallel_core.data.instruction.conversations import Conversation
from parallel_core.data.instruction.encoding import ConversationEncoder
from parallel_core.data.instruction.handlers import instruction
from parallel_core.data.instruction.mixing import checked_probabilities, interleaved, listed_sources
from parallel_core.data.instruction.packing import best_fit
from parallel_core.data.instruction.setting import Setting
from parallel_core.data.instruction.tokens import tokens_for
from parallel_core.data.preprocess.command_line import main
from parallel_core.data.tokenizers import TokenizerOptions, build_tokenizer
from tests.support.instruction import inputs

FOLDER = "hf_qwen2"
IM_END = 3002


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(TokenizerOptions("PretrainedFromHF", tokenizer_model=str(inputs() / "tokenizers" / FOLDER)))


def written(tmp_path, rows, handler, *more):
    """{key: its sequences} of the data set that preprocessing writes for these rows with this handler."""
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = ["--input", str(tmp_path / "in.jsonl")] if "--input" not in more else []
    main(
        [
            *(*given, "--output-prefix", str(tmp_path / "data"), "--tokenizer-type", "PretrainedFromHF"),
            *("--tokenizer-name-or-path", str(inputs() / "tokenizers" / FOLDER), "--handler-name", handler, *more),
        ]
    )
    found = {}
    for path in sorted(tmp_path.glob("data_*.idx")):
        data = IndexedDataset(path.with_suffix(""))
        key = path.stem.removeprefix("data_").removeprefix("packed_").removesuffix("_document")
        found[key] = [data[i].tolist() for i in range(len(data))]
    return found


def answer(sets, tokenizer, number=0):
    """The text of the labels that carry loss in sequence `number`."""
    return tokenizer.detokenize([label for label in sets["labels"][number] if label != -100])


def test_the_tokenizers_own_template_writes_conversations(tmp_path, tokenizer):
    """--prompt-type chat_template gives the ids of the tokenizer's template for the whole conversation; the answers and
    their ends carry loss."""
    turns = [("human", "q"), ("gpt", "a"), ("human", "r"), ("gpt", "b")]
    row = {"conversations": [{"from": role, "value": text} for role, text in turns], "system": "Be kind."}
    more = ("--prompt-type", "chat_template", "--map-keys", '{"system": "system"}')
    sets = written(tmp_path, [row], "SharegptStyleInstructionHandler", *more)
    roles = {"human": "user", "gpt": "assistant"}
    messages = [{"role": "system", "content": "Be kind."}]
    messages += [{"role": roles[role], "content": text} for role, text in turns]
    assert sets["input_ids"] == [tokenizer.apply_chat_template(messages)]
    assert answer(sets, tokenizer) == "a<|im_end|>\nb<|im_end|>\n"


def test_prompts_with_fixed_headings(tmp_path, tokenizer):
    """Belle's handler splits the turns within one text and puts headings before them, and as MindSpeed-LLM loses a last
    question without `Assistant:`; LeetCode's reads its own columns; the last answer carries loss."""
    row = {"instruction": "Human: q\nAssistant: a\nHuman: r\nAssistant:", "input": "", "output": " b "}
    sets = written(tmp_path, [row], "BelleMultiTurnInstructionHandler", "--append-eod")
    assert answer(sets, tokenizer) == "b\n<|im_end|>"
    text = tokenizer.detokenize(sets["input_ids"][0])
    assert text.count("### Instruction:\n") == text.count("### Response:\n") == 2 and "\na\n" in text
    (tmp_path / "open").mkdir()
    row = {"instruction": "Human: q\nAssistant: a\nHuman: r", "input": "", "output": "b"}
    text = tokenizer.detokenize(written(tmp_path / "open", [row], "BelleMultiTurnInstructionHandler")["input_ids"][0])
    assert text.count("### Instruction:\n") == 1 and text.count("### Response:\n") == 2 and "\nr\n" not in text
    (tmp_path / "code").mkdir()
    row = {"code_with_problem": "Add. ```x```", "code_only": "x + y", "explanation_only": "It adds."}
    assert (
        answer(written(tmp_path / "code", [row], "LeetcodePythonInstructionHandler"), tokenizer) == "x + y\nIt adds.\n"
    )


def test_chats_of_moss(tmp_path, tokenizer):
    """MOSS's handler writes a sample for each turn, with the turns before it; the multi-turn one writes a single sample
    with Baichuan's role ids (195, 196)."""
    turns = {f"turn_{n}": {"Human": f"<|Human|>: q{n}<eoh>\n", "MOSS": f"<|MOSS|>: a{n}<eom>\n"} for n in (1, 2)}
    sets = written(tmp_path, [{"chat": turns}], "MOSSInstructionHandler")
    assert [answer(sets, tokenizer, number) for number in (0, 1)] == ["a1\n", "a2\n"]
    (tmp_path / "turns").mkdir()
    sets = written(tmp_path / "turns", [{"chat": turns}], "MOSSMultiTurnHandler")
    assert sets["input_ids"][0].count(195) == sets["input_ids"][0].count(196) == 2
    assert sets["input_ids"][0][-1] == sets["labels"][0][-1] == IM_END


def test_packs_hold_each_turn_of_moss(tmp_path, tokenizer, capsys):
    """--pack takes each turn of a chat as a sample, of a row whose last turn is too long the others; --neat-pack cuts
    that turn."""
    turns = {f"turn_{n}": {"Human": f"<|Human|>: q{n}<eoh>\n", "MOSS": f"<|MOSS|>: a{n}<eom>\n"} for n in (1, 2)}
    lengths = [len(ids) for ids in written(tmp_path, [{"chat": turns}], "MOSSInstructionHandler")["input_ids"]]

    def packs(seq_length, *more):
        more = ("--pack", "--seq-length", str(seq_length), *more)
        return written(tmp_path, [{"chat": turns}], "MOSSInstructionHandler", *more)

    assert answer(packs(sum(lengths) + 1), tokenizer) == "a2\na1\n"
    assert answer(sets := packs(lengths[1]), tokenizer) == "a1\n" and len(sets["input_ids"]) == 1
    assert f"in.jsonl, line 1: too long: {lengths[1]} tokens" in "".join(capsys.readouterr())
    assert len(packs(lengths[1], "--neat-pack")["input_ids"]) == 2


def test_an_end_of_text_is_needed_where_it_is_written(tokenizer):
    """A tokenizer without an end of a text writes conversations by its own template; --append-eod is refused."""
    tokens = replace(tokens_for(None, tokenizer), end=None)
    setting = Setting(tokens, ConversationEncoder(None, tokens))
    turns = [{"role": "user", "content": "q"}], [{"role": "assistant", "content": "a"}]
    sets = instruction(Conversation(*turns), setting)
    assert sets["input_ids"] == [tokenizer.apply_chat_template([*turns[0], *turns[1]])]
    with pytest.raises(ValueError, match=r"^--append-eod: the tokenizer has no token"):
        instruction(Conversation(*turns), replace(setting, append_eod=True))


def test_rewards_data_have_prompts_alone(tmp_path, tokenizer):
    """The handler for reward training (R1) writes prompts, and the answer under `labels` if --dataset-additional-keys
    asks for it."""
    row = {"instruction": "q", "input": "", "output": "the answer"}
    more = ("--prompt-type", "qwen", "--dataset-additional-keys", "labels")
    sets = written(tmp_path, [row], "R1AlpacaStyleInstructionHandler", *more)
    assert tokenizer.detokenize(sets["labels"][0]) == "the answer"
    assert tokenizer.detokenize(sets["input_ids"][0]).endswith("<|im_start|>assistant\n")


def test_rewards_data_without_an_answer_are_left_out(tmp_path, capsys):
    """A row whose messages all lack content has no `labels`: the R1 handler leaves it out with the reason."""
    roles = "human", "gpt"
    good = {"conversations": [{"from": role, "value": role} for role in roles]}
    bad = {"conversations": [{"from": role, "value": None} for role in roles]}
    more = ("--prompt-type", "qwen", "--dataset-additional-keys", "labels")
    sets = written(tmp_path, [bad, good], "R1SharegptStyleInstructionHandler", *more)
    assert [len(sequences) for sequences in sets.values()] == [1, 1, 1]
    assert "in.jsonl, line 1: 'labels' must be a text: is None" in "".join(capsys.readouterr())


def test_rewards_data_of_calls_alone_are_left_out(tmp_path, capsys):
    """A conversation of which the template leaves no turn, such as deepseek4's whose only answer is a call, is left
    out with the reason."""
    call = {"from": "function_call", "value": json.dumps({"name": "f", "arguments": {}})}
    asked, answered = ({"from": role, "value": role} for role in ("human", "gpt"))
    rows = [{"conversations": [asked, call]}, {"conversations": [asked, answered]}]
    sets = written(tmp_path, rows, "R1SharegptStyleInstructionHandler", "--prompt-type", "deepseek4")
    assert [len(sequences) for sequences in sets.values()] == [1, 1]
    assert "in.jsonl, line 1: no turn of the conversation is left" in "".join(capsys.readouterr())


@pytest.mark.parametrize("names", [{"response": None}, {"prompt": "output"}], ids=["none", "taken"])
def test_answers_to_compare_need_no_output(names, tmp_path, tokenizer):
    """The pairwise handler does not read the output's column: --map-keys may say that there is none, or that it holds
    the question."""
    row = {names.get("prompt", "instruction"): "the question", "chosen": "yes", "rejected": "no"}
    more = ("--prompt-type", "qwen", "--map-keys", json.dumps(names))
    sets = written(tmp_path, [row], "AlpacaStylePairwiseHandler", *more)
    texts = [tokenizer.detokenize(sets[f"{side}_input_ids"][0]) for side in ("chosen", "rejected")]
    assert all("the question" in text for text in texts) and "yes" in texts[0] and "no" in texts[1]


def test_data_sets_of_a_list_are_mixed(tmp_path, tokenizer):
    """Data sets named by LlamaFactory's dataset_info.json are mixed by --mix-strategy: one after the other, or in turn
    until the shortest or the longest ends."""
    info = {}
    for name, number in (("one", 3), ("two", 2)):
        rows = [{"instruction": "q", "input": "", "output": f"{name}{at}"} for at in range(number)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        info[name] = {"file_name": f"{name}.jsonl"}
    (tmp_path / "dataset_info.json").write_text(json.dumps(info))
    common = ("--input", "one,two", "--dataset-dir", str(tmp_path), "--prompt-type", "qwen")
    for strategy, expected in {
        "concat": "one0 one1 one2 two0 two1",
        "interleave_under": "one0 two0 one1 two1",
        "interleave_over": "one0 two0 one1 two1 one2 two0",
    }.items():
        sets = written(tmp_path, [], "LlamaFactoryInstructionHandler", *common, "--mix-strategy", strategy)
        answers = [answer(sets, tokenizer, at).removesuffix("<|im_end|>") for at in range(len(sets["labels"]))]
        assert " ".join(answers) == expected


@pytest.mark.parametrize("key", ["columns", "tags"])
def test_names_of_a_data_set_must_be_an_object(key, tmp_path):
    """A data set in dataset_info.json with a list for its columns or tags is refused with the file and the key."""
    info = {"a": {"file_name": "a.json", "formatting": "sharegpt", key: ["x"]}}
    (tmp_path / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(ValueError, match=rf"dataset_info.json: a: {key} must be an object"):
        listed_sources("a", str(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": {"file_name": "a.json", "formatting": []}}', "a must have a file_name, and formatting"),
        ('{"a": {"file_name": "a.json", "columns": {"query": []}}}', "a: columns must be an object of names"),
        ("[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_a_list_of_data_sets_with_other_types_is_refused(tmp_path, content, message):
    """A dataset_info.json with lists for names, or nested too deep, is an error that names it."""
    (tmp_path / "dataset_info.json").write_text(content)
    with pytest.raises(ValueError, match=rf"dataset_info.json:? {message}"):
        listed_sources("a", str(tmp_path))


def test_drawn_mixtures_end_as_asked():
    """`interleaved` draws data sets by probability, and ends with the first that is used up, or with the last, while
    the others begin again."""
    under = list(interleaved([5, 50], [0.5, 0.5], 1234, until_all=False))
    assert [number for which, number in under if which == 0] == [0, 1, 2, 3, 4]
    over = list(interleaved([5, 50], [0.5, 0.5], 1234, until_all=True))
    assert {number for which, number in over if which == 1} == set(range(50)) and over[: len(under)] == under


@pytest.mark.parametrize("until_all", [False, True])
@pytest.mark.parametrize("text", ["1", "0.5,0.6", "1.5,-0.5", "nan,1", "a,b", "0.3333333,0.6666666"])
def test_shares_of_data_sets_that_are_none_are_refused(text, until_all):
    """--interleave-probs that are not one a data set, negative, no numbers, or do not sum to 1 are an error."""
    with pytest.raises(ValueError, match=f"^--interleave-probs {text}: must be 2 numbers, one a data set"):
        checked_probabilities(text, 2, until_all)


def test_a_data_set_that_is_never_drawn_is_refused_where_it_must_end():
    """A 0 in --interleave-probs is refused with interleave_over, which would never end; interleave_under takes it."""
    assert checked_probabilities("1,0", 2, until_all=False) == [1, 0]
    with pytest.raises(ValueError, match=r"^--interleave-probs 1,0: with --mix-strategy interleave_over each must be"):
        checked_probabilities("1,0", 2, until_all=True)


def test_packs_are_filled_with_what_fits_best():
    """`best_fit` fills packs of a length with the indices of sequences: the longest that fits first, of equal ones the
    last."""
    assert best_fit([3, 5, 2, 5, 4], 9) == [[3, 4], [1, 0], [2]]
    assert best_fit([], 9) == []
