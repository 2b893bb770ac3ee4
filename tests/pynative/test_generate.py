"""Text from a model: alone, in several ranks, and from the command line."""

import subprocess
import sys

import numpy as np
import pytest

from tests.support.assets import ROOT
from tests.support.checkpoint_cases import unpack
from tests.support.checkpoint_jobs import layout_flags, train
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job

PROMPT = [3, 1, 4, 1, 5]


def continuations(backend, flags: str, asked: list[dict]) -> list[list[int]]:
    """What an untrained model says to PROMPT, for each way of asking."""
    from pynative.generate import generate
    from pynative.parameter import initialize_parameters
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(f"{TINY} {flags}", backend.world_size)
    with job(backend, config):
        model = GPTModel(config.model_config)
        initialize_parameters(model, 1)
        return [generate(model, **({"tokens": PROMPT} | how)) for how in asked]


def by_hand(backend, flags: str, count: int) -> list[int]:
    """The likeliest continuation, from the whole logits of one forward a token."""
    import mindspore as ms

    from pynative.parameter import initialize_parameters
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(f"{TINY} {flags}", 1)
    tokens = list(PROMPT)
    with job(backend, config):
        model = GPTModel(config.model_config, parallel_output=False)
        initialize_parameters(model, 1)
        model.set_train(False)
        for _ in range(count):
            window = np.array([tokens[-16:]], np.int32)
            positions = np.arange(window.shape[1], dtype=np.int32)[None]
            logits = model(ms.Tensor(window), ms.Tensor(positions), None).astype(ms.float32).asnumpy()
            tokens.append(int(logits[0, -1, :60].argmax()))
    return tokens[len(PROMPT) :]


GREEDY = {"max_new_tokens": 20}
DRAWN = {"max_new_tokens": 20, "temperature": 1.5, "top_k": 30, "seed": 3}


@pytest.mark.parametrize("flags", ["", "--bf16", "--fp16"])
def test_greedy_is_the_likeliest_token_each_time(flags):
    """Also when the text has grown past the window of --seq-length 16; in every type."""
    (said,) = run(1, continuations, flags, [GREEDY])[0]
    assert said == run(1, by_hand, flags, 20)[0] and len(said) == 20


@pytest.mark.parametrize("flags", ["--bf16", "--fp16"])
def test_sixteen_bits_draw_as_they_are_seeded(flags):
    """Probabilities are float32's: a seed repeats, another differs, and two ranks of a layer draw the same."""
    same, again, other = run(1, continuations, flags, [DRAWN, DRAWN, DRAWN | {"seed": 4}])[0]
    assert same == again != other and max(same + other) < 61
    two = run(2, continuations, f"{layout_flags(2, 1)} {flags}", [DRAWN])
    assert two[0] == two[1]


@pytest.mark.parametrize("more", ["", "--sequence-parallel"])
def test_ranks_that_share_layers_say_the_same_as_one(more):
    """Tensor-parallel size 2: both ranks, greedy and drawn; also where every second text does not cut in two."""
    alone = run(1, continuations, "", [GREEDY, DRAWN])[0]
    assert run(2, continuations, f"{layout_flags(2, 1)} {more}", [GREEDY, DRAWN]) == [alone, alone]


def test_a_seed_repeats_and_another_differs():
    """And drawing differs from the likeliest."""
    same, again, other, greedy = run(1, continuations, "", [DRAWN, DRAWN, DRAWN | {"seed": 4}, GREEDY])[0]
    assert same == again and len({tuple(same), tuple(other), tuple(greedy)}) == 3


def test_padding_of_the_vocabulary_is_never_said():
    """61 ids in a table of 64, at a temperature that makes all rows equally likely."""
    (said,) = run(1, continuations, "", [{"max_new_tokens": 120, "temperature": 1e6}])[0]
    assert max(said) < 61 and len(set(said)) > 45


def test_the_end_of_the_document_ends_it():
    """It is left out."""
    first, stopped = run(1, continuations, "", [GREEDY, GREEDY])[0]
    end = first[7]
    (stopped,) = run(1, continuations, "", [GREEDY | {"end_of_document": end}])[0]
    assert stopped == first[: first.index(end)]


@pytest.mark.parametrize(
    ("tokens", "words"), [([], "at least one token"), ([3, 63], "token 63 is not among"), ([-1], "token -1")]
)
def test_a_prompt_that_cannot_be_continued(tokens, words):
    with pytest.raises(ValueError, match=words):
        run(1, continuations, "", [GREEDY | {"tokens": tokens}])


def prompts_of_their_own(backend) -> str:
    with pytest.raises(ValueError) as error:
        continuations(backend, layout_flags(2, 1), [GREEDY | {"tokens": [3, backend.rank]}])
    return str(error.value)


def test_ranks_that_share_layers_ask_alike():
    """Else a text would be made of both prompts."""
    assert all("call it alike" in message for message in run(2, prompts_of_their_own))


def test_several_stages_are_refused():
    """With what to do instead."""
    with pytest.raises(ValueError, match=r"--pipeline-model-parallel-size 2: .*use 1"):
        run(2, continuations, layout_flags(1, 2), [GREEDY])


def test_a_cut_sequence_is_refused():
    """A prompt is no piece of a sequence."""
    with pytest.raises(ValueError, match=r"--context-parallel-size 2: .*use 1"):
        run(2, continuations, "--context-parallel-size 2", [GREEDY])


def test_the_command_continues_what_two_ranks_trained(tmp_path):
    """Model and tokenizer from the checkpoint alone; the prompt and ids behind it are printed."""
    run(2, train, f"--save {tmp_path} {layout_flags(2, 1)}")
    command = [sys.executable, ROOT / "examples/gpt/generate.py", "--load", tmp_path, "--prompt", "3 1 4 "]
    done = subprocess.run([*command, "--max-new-tokens", "5"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert words[:3] == ["3", "1", "4"] and 3 < len(words) <= 8 and all(0 <= int(word) <= 60 for word in words)


def test_the_command_continues_as_transformers_does(tmp_path):
    """A folder of HuggingFace's; the ids are recorded. No tokenizer is named, so none of them ends the text."""
    folder = unpack("hf/llama", tmp_path)
    command = [sys.executable, ROOT / "examples/gpt/generate.py", "--load", folder, "--prompt", "134 92 75 "]
    done = subprocess.run([*command, "--max-new-tokens", "24"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    new = "38 88 88 70 94 38 88 38 132 100 77 88 38 64 33 50 59 22 21 91 94 94 94 94"
    assert done.stdout.strip() == f"134 92 75 {new}"


@pytest.mark.parametrize(
    ("folder", "prompt", "words"),
    [
        ("empty", "x", "was ever completed there"),
        ("missing", "x", "there is no such folder"),
        ("hf_llama/checkpoint", "some words", "decimal ids"),
    ],
)
def test_the_command_says_what_is_wrong_in_a_line(folder, prompt, words, tmp_path):
    """No traceback for a directory without a checkpoint, or for text where no tokenizer is named."""
    (tmp_path / "empty").mkdir()
    unpack("hf/llama", tmp_path)
    load = tmp_path / folder
    command = [sys.executable, ROOT / "examples/gpt/generate.py", "--load", load, "--prompt", prompt]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and not done.stdout
    assert done.stderr.startswith("error: ") and words in done.stderr
