"""Generating text: alone, in a batch, with and without a cache, on several ranks, and by the command."""

import json

import numpy as np
import pytest

from pynative.startup.launch import msrun_command
from tests.support import warm
from tests.support.assets import ROOT
from tests.support.checkpoint_cases import unpack
from tests.support.checkpoint_jobs import layout_flags, train
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.generation import recorded

PROMPT = [3, 1, 4, 1, 5]


def continuations(backend, flags: str, asked: list[dict]) -> list[list[int]]:
    """Continuations of PROMPT (or the `tokens` given) by an untrained model, one for each set of options of
    `generate`."""
    from pynative.generation import generate
    from pynative.parameter import initialize_parameters
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(f"{TINY} {flags}", backend.world_size)
    with job(backend, config):
        model = GPTModel(config.model_config)
        initialize_parameters(model, 1)
        return [generate(model, **({"tokens": PROMPT} | how)) for how in asked]


def by_hand(backend, flags: str, count: int) -> list[int]:
    """The greedy continuation, by the argmax of the whole logits of one forward for each token."""
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
    """Greedy generation takes the argmax of the whole logits, in every type, also when the text has grown past the
    --seq-length of 16."""
    (said,) = run(1, continuations, flags, [GREEDY])[0]
    assert said == run(1, by_hand, flags, 20)[0] and len(said) == 20


@pytest.mark.parametrize("flags", ["--bf16", "--fp16"])
def test_sixteen_bits_draw_as_they_are_seeded(flags):
    """In 16-bit models probabilities are computed in float32: a seed repeats its text, another differs, and two
    tensor-parallel ranks draw the same."""
    same, again, other = run(1, continuations, flags, [DRAWN, DRAWN, DRAWN | {"seed": 4}])[0]
    assert same == again != other and max(same + other) < 61
    two = run(2, continuations, f"{layout_flags(2, 1)} {flags}", [DRAWN])
    assert two[0] == two[1]


@pytest.mark.parametrize("more", ["", "--sequence-parallel"])
def test_ranks_that_share_layers_say_the_same_as_one(more):
    """tp2 gives one rank's text on both ranks, greedy and drawn; with sequence parallelism also for texts of odd
    length."""
    alone = run(1, continuations, "", [GREEDY, DRAWN])[0]
    assert run(2, continuations, f"{layout_flags(2, 1)} {more}", [GREEDY, DRAWN]) == [alone, alone]


def test_a_seed_repeats_and_another_differs():
    """Equal seeds draw equal texts; another seed, and the greedy text, differ."""
    same, again, other, greedy = run(1, continuations, "", [DRAWN, DRAWN, DRAWN | {"seed": 4}, GREEDY])[0]
    assert same == again and len({tuple(same), tuple(other), tuple(greedy)}) == 3


def test_padding_of_the_vocabulary_is_never_said():
    """The padding of a table from 61 ids to 64 is never drawn, even at a temperature at which all rows are equally
    likely."""
    (said,) = run(1, continuations, "", [{"max_new_tokens": 120, "temperature": 1e6}])[0]
    assert max(said) < 61 and len(set(said)) > 45


def test_the_end_of_the_document_ends_it():
    """Generation stops at the end-of-document token, which is left out of the result."""
    first, stopped = run(1, continuations, "", [GREEDY, GREEDY])[0]
    end = first[7]
    (stopped,) = run(1, continuations, "", [GREEDY | {"end_of_document": end}])[0]
    assert stopped == first[: first.index(end)]


@pytest.mark.parametrize(
    ("tokens", "words"), [([], "at least one token"), ([3, 63], "token 63 is not among"), ([-1], "token -1")]
)
def test_a_prompt_that_cannot_be_continued(tokens, words):
    """`generate` refuses an empty prompt and token ids outside the vocabulary with a ValueError that says which."""
    with pytest.raises(ValueError, match=words):
        run(1, continuations, "", [GREEDY | {"tokens": tokens}])


def prompts_of_their_own(backend) -> str:
    with pytest.raises(ValueError) as error:
        continuations(backend, layout_flags(2, 1), [GREEDY | {"tokens": [3, backend.rank]}])
    return str(error.value)


def arrays_of_their_own(backend, differ: bool) -> None:
    """Ask for a long array and an `Asked`; differ: of which one element in the middle is the rank's own."""
    from pynative.generation import Asked
    from pynative.generation.texts import check_alike
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(f"{TINY} {layout_flags(2, 1)}", backend.world_size)
    with job(backend, config):
        ids = np.zeros(3000, np.int32)
        ids[1500] = backend.rank * differ
        check_alike(GPTModel(config.model_config), [ids, Asked(3, ends=frozenset({7, 2}))])


def test_ranks_that_share_layers_ask_alike():
    """Different prompts on two tensor-parallel ranks, of which a mixed text would be made, are an error on both, also
    in the middle of a long array."""
    assert all("call it alike" in message for message in run(2, prompts_of_their_own))
    run(2, arrays_of_their_own, False)
    with pytest.raises(ValueError, match="call it alike"):
        run(2, arrays_of_their_own, True)


def test_a_cut_sequence_is_refused():
    """Generation with --context-parallel-size 2 is an error, as a prompt is not cut."""
    with pytest.raises(ValueError, match=r"--context-parallel-size 2: .*use 1"):
        run(2, continuations, "--context-parallel-size 2", [GREEDY])


def test_a_batch_says_what_each_of_its_texts_says_alone():
    """A batch of prompts of different lengths gives each greedy text as alone; of drawn texts only the first, as each
    text has random numbers of its own."""
    prompts = [PROMPT, [7], [2, 9, 9]]
    for asked in (GREEDY, DRAWN):
        together = run(1, batch, "", prompts, asked)[0]
        alone = [run(1, batch, "", [prompt], asked)[0][0] for prompt in prompts]
        assert together[0] == alone[0] and (asked is DRAWN or together == alone)


def batch(backend, flags: str, prompts: list[list[int]], asked: dict) -> list[list[int]]:
    """Continuations of a batch of prompts by an untrained model with these options."""
    from parallel_core.sampling import Sampling
    from pynative.generation import Asked, generate_texts
    from pynative.parameter import initialize_parameters
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(f"{TINY} {flags}", backend.world_size)
    how = {name: asked[name] for name in ("temperature", "top_k", "seed") if name in asked}
    with job(backend, config):
        model = GPTModel(config.model_config)
        initialize_parameters(model, 1)
        texts = generate_texts(model, prompts, Asked(asked["max_new_tokens"], Sampling(**how)))
        return [text.new for text in texts]


LATENT = (
    "--multi-latent-attention --q-lora-rank 12 --kv-lora-rank 8 --qk-head-dim 8 --qk-pos-emb-head-dim 4 --v-head-dim 8 "
    "--position-embedding-type rope"
)
KINDS = {
    "window": "--sliding-window 4",
    "alibi": "--position-embedding-type alibi",
    "rotary": "--position-embedding-type rope --rotary-percent 0.5 --rotary-interleaved",
    "norms": "--qk-layernorm --normalization RMSNorm --group-query-attention --num-query-groups 2 --swiglu",
    "latent": LATENT,
    "latent with adapters": f"{LATENT} --lora-target-modules linear_kv_up_proj --lora-r 2",
    "capacity": "--num-experts 4 --moe-router-topk 2 --moe-expert-capacity-factor 0.5",
    "further": "--mtp-num-layers 1 --position-embedding-type rope",
}


@pytest.mark.parametrize("flags", KINDS.values(), ids=KINDS)
def test_a_cache_changes_nothing(flags):
    """For each kind of layer the texts with a key/value cache are those without, also beyond --seq-length, where none
    is used."""
    cached, whole = run(1, continuations, flags, [GREEDY, GREEDY | {"use_cache": False}])[0]
    assert cached == whole and len(set(cached)) > 1


def heads_of_keys(backend) -> list[int]:
    """The number of key heads that latent attention makes in each of a layer's forwards during generation."""
    from pynative.transformer.multi_latent_attention import MLASelfAttention

    heads, project_up = [], MLASelfAttention.project_up

    def recorded_heads(self, *latents):
        query, key, value = project_up(self, *latents)
        heads.append(key.shape[2])
        return query, key, value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MLASelfAttention, "project_up", recorded_heads)
        continuations(backend, f"{LATENT} --num-layers 1", [GREEDY])
    return heads


def test_latent_attention_makes_no_keys_of_cached_tokens():
    """Keys of all heads are made for the prompt only; later tokens attend to the cached latents as one head; beyond the
    cache's 16 tokens texts are computed whole."""
    made = run(1, heads_of_keys)[0]
    assert made == [made[0], *[1] * (16 - len(PROMPT)), *[made[0]] * (len(PROMPT) + 4 - 1)] and made[0] > 1


def fails(backend) -> tuple[bool, bool]:
    """(whether the model is in training mode before, whether it is after) a generation that a script's error ends."""
    from pynative.generation import Asked, generate_texts
    from pynative.transformer.gpt_model import GPTModel

    def is_over(text):
        raise KeyError("of a script")

    config = config_of(TINY, 1)
    with job(backend, config):
        model = GPTModel(config.model_config)
        model.set_train(True)
        before = model.training
        with pytest.raises(KeyError):
            generate_texts(model, [PROMPT], Asked(3), is_over)
        return before, model.training


def test_an_error_leaves_the_model_in_training():
    """A model in training mode is in it again after a generation that an error of the script's `is_over` ends."""
    assert run(1, fails)[0] == (True, True)


def test_the_command_continues_what_two_ranks_trained(tmp_path):
    """generate.py --load of a tp2 checkpoint, on one rank: model and tokenizer are the checkpoint's; prompt and
    continuation are printed."""
    run(2, train, f"--save {tmp_path} {layout_flags(2, 1)}")
    command = [ROOT / "examples/gpt/generate.py", "--load", tmp_path, "--prompt", "3 1 4 "]
    done = warm.run([*command, "--max-new-tokens", "5"], tmp_path)
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert words[:3] == ["3", "1", "4"] and 3 < len(words) <= 8 and all(0 <= int(word) <= 60 for word in words)


def test_the_command_continues_prompts_of_a_file(tmp_path):
    """A HuggingFace folder and a file of prompts: the recorded ids of `transformers`. Without a tokenizer ids are
    printed and none ends a text; a stop word ends one."""
    folder, (first, second, _) = unpack("hf/llama", tmp_path), recorded()["llama"]["prompts"]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(f"{json.dumps({'ids': first})}\n{json.dumps({'text': ' '.join(map(str, second))})}\n")
    command = ["-m", "mapping", "generate", "--load", folder, "--prompts", prompts, "--json"]
    done = warm.run([*command, "--max-new-tokens", "24", "--stop", " 33 50"])
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    stopped, whole = recorded()["llama"]["new_tokens"][:2]
    assert [line["ids"] for line in lines] == [stopped[: stopped.index(33)], whole]
    assert lines[1]["text"] == " ".join(map(str, whole))
    assert all(len(line["logprobs"]) == len(line["ids"]) and max(line["logprobs"]) < 0 for line in lines)


def test_the_command_runs_on_several_ranks(tmp_path):
    """generate.py under msrun with tp2 prints the recorded text once, on the first rank."""
    case, (prompt, *_) = recorded()["mixtral"], recorded()["mixtral"]["prompts"]
    words = "".join(f"{token} " for token in prompt)
    asked = ["--load", unpack("hf/mixtral", tmp_path), "--prompt", words, "--max-new-tokens", "24"]
    command = msrun_command(
        ROOT / "examples/gpt/generate.py", [*map(str, asked), "--tensor-model-parallel-size", "2"], 2, tmp_path / "logs"
    )
    done = warm.run(command, tmp_path, warm.programs_first())
    logs = "".join(log.read_text() for log in (tmp_path / "logs").glob("worker_*.log"))
    assert done.returncode == 0, logs
    assert logs.count(f"{words}{' '.join(map(str, case['new_tokens'][0]))}") == 1


@pytest.mark.parametrize(
    ("folder", "prompt", "words"),
    [
        ("empty", "x", "was ever completed there"),
        ("missing", "x", "there is no such folder"),
        ("hf_llama/checkpoint", "some words", "decimal ids"),
    ],
)
def test_the_command_says_what_is_wrong_in_a_line(folder, prompt, words, tmp_path):
    """`generate` on a folder without a checkpoint, on a missing one, and for text without a tokenizer: one line, no
    traceback."""
    (tmp_path / "empty").mkdir()
    unpack("hf/llama", tmp_path)
    load = tmp_path / folder
    done = warm.run([ROOT / "examples/gpt/generate.py", "--load", load, "--prompt", prompt])
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and not done.stdout
    assert done.stderr.startswith("error: ") and words in done.stderr
