"""The command `evaluate`: loss and exact matches of the answers in a file, and lines of it that are no question."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from parallel_core.data.instruction.chat import Chat
from parallel_core.data.instruction.templates import load_template
from parallel_core.data.questions import Question, Task, Writer, read_questions
from parallel_core.data.tokenizers import TokenizerOptions, build_tokenizer
from parallel_core.findings import ConfigError
from tests.support import warm
from tests.support.assets import ROOT
from tests.support.checkpoint_cases import unpack
from tests.support.distributed import run
from tests.support.engine import job
from tests.support.generation import recorded
from tests.support.instruction import inputs

TASKS = [Task([3, 1, 4], [1, 5, 9], 1), Task([2, 6, 5, 3, 5], [8], 2), Task([9], [7, 9, 3, 2], 4)]


def scored(backend, folder, **parallel):
    from pynative.generation.command import filled
    from pynative.generation.options import config_of
    from pynative.generation.scores import answer_logprobs

    config = config_of(folder, "float32", device_target="CPU", world_size=backend.world_size, **parallel)
    with job(backend, config):
        return answer_logprobs(filled(folder, config), TASKS)


def by_hand(backend, folder):
    """Log probabilities of each task's answer tokens, from the whole logits of its text alone."""
    from parallel_core.sampling import log_probability
    from pynative.generation.checkpoint_logits import config_in_float32, logits_of

    found = []
    config = config_in_float32(folder)
    with job(backend, config):
        for task in TASKS:
            logits = logits_of(folder, np.array([[*task.prompt, *task.answer]], np.int32))[0]
            rows = logits[len(task.prompt) - 1 :, : config.model_config.unpadded_vocab_size]
            found.append([log_probability(row, token) for row, token in zip(rows, task.answer, strict=False)])
    return found


@pytest.mark.parametrize("ids", ["a,b", "1,,2", "1,-2", str(2**40)])
def test_ids_that_are_no_numbers_are_said(ids, capsys):
    """--ids of `checkpoint_logits` that are no ids end with exit code 2 and the flag, not in a traceback."""
    from pynative.generation.checkpoint_logits import main

    with pytest.raises(SystemExit) as caught:
        main(["--out", "x.npz", "--ids", ids, "nowhere"])
    said = capsys.readouterr().err
    assert caught.value.code == 2 and said.startswith("error: argument --ids: ") and ids in said


TENSOR, PIPELINE = {"tensor_model_parallel_size": 2}, {"pipeline_model_parallel_size": 2}


@pytest.mark.parametrize(
    ("world_size", "parallel"),
    [(1, {}), (2, TENSOR), (2, TENSOR | {"sequence_parallel": True}), (2, PIPELINE)],
    ids=["one", "tp2", "sp2", "pp2"],
)
def test_probabilities_of_answers_are_those_of_the_whole_logits(world_size, parallel, tmp_path):
    """The log probabilities of answers of different lengths in one batch are `by_hand`'s, on every rank of
    each layout."""
    folder = unpack("hf/llama", tmp_path)
    (wanted,) = run(1, by_hand, folder)
    for found in run(world_size, scored, folder, **parallel):
        assert [len(own) for own in found] == [3, 1, 4]
        np.testing.assert_allclose(np.concatenate(found), np.concatenate(wanted), rtol=1e-5)


def refused(backend, folder):
    """The errors of answers that the model of `folder` cannot score, and of a summary of no results."""
    from pynative.generation.command import filled
    from pynative.generation.judge import summary
    from pynative.generation.options import config_of
    from pynative.generation.scores import answer_logprobs

    config = config_of(folder, "float32", device_target="CPU", world_size=1)
    sizes, found = config.model_config, []
    ids, room = sizes.unpadded_vocab_size, sizes.seq_length
    wrong = [Task([1], [ids], 2), Task([1], [2, -1], 3), Task([1] * room, [1], 5), Task([1], [], 6)]
    with job(backend, config):
        model = filled(folder, config)
        for ask in (lambda: answer_logprobs(model, [TASKS[0], *wrong]), lambda: summary([])):
            try:
                ask()
            except ValueError as error:
                found.append(str(error).split("\n"))
        (most,) = answer_logprobs(model, [Task([1] * (room - 1), [1], 1)])
    return ids, room, found, len(most)


def test_answers_that_a_model_cannot_score_are_named(tmp_path):
    """Tasks longer than the sequence, with ids that the model lacks, or without an answer are one error that names each
    by its line, as is a summary of no results; a task that just fits is scored."""
    ((ids, room, (tasks, nothing), most),) = run(1, refused, unpack("hf/llama", tmp_path))
    starts = [f"line 2: has token {ids}", "line 3: has token -1", f"line 5: has {room + 1} tokens", "line 6: has no"]
    assert all(error.startswith(f"--task-data-path {start}") for error, start in zip(tasks, starts, strict=True))
    assert nothing == ["there is no result to sum up; judge at least one task"] and most == 1


def evaluate(folder, file, *more):
    return warm.run(["-m", "mapping", "evaluate", "--load", folder, "--task-data-path", file, *more])


def words(tokens) -> str:
    return " ".join(map(str, tokens))


def test_the_command_counts_what_a_model_says_word_by_word(tmp_path):
    """`evaluate --json`: recorded greedy continuations as answers are exact matches, one with another last token is
    not."""
    case, file = recorded()["llama"], tmp_path / "held.jsonl"
    (first, second, third), said = case["prompts"], [new[:6] for new in case["new_tokens"]]
    rows = [
        {"prompt": words(first), "answer": words(said[0])},
        {"instruction": words(second[:-1]), "input": words(second[-1:]), "output": words(said[1])},
        {"prompt": words(third), "answer": words([*said[2][:-1], said[2][-1] ^ 1])},
    ]
    file.write_text("\n\n".join(map(json.dumps, rows)))
    done = evaluate(unpack("hf/llama", tmp_path), file, "--json", "--batch-size", "2")
    assert done.returncode == 0, done.stderr
    whole = json.loads(done.stdout)
    assert [(line["line"], line["is_exact"]) for line in whole["lines"]] == [(1, True), (3, True), (5, False)]
    assert whole["exact_match"] == pytest.approx(2 / 3) and (whole["answers"], whole["tokens"]) == (3, 18)
    assert whole["loss"] == pytest.approx(np.mean([line["loss"] for line in whole["lines"]]))
    assert whole["lines"][2]["text"] == words(said[2])


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"prompt": "1 2"}', 'needs "answer" or "output"'),
        ('{"prompt": "", "answer": "1"}', 'needs "prompt" or "instruction"'),
        ('{"prompt": "1", "input": 3, "answer": "1"}', '"input" must be a text'),
        ("[1]", 'must be an object with "prompt"'),
        ("{", "is not JSON"),
    ],
)
def test_a_line_that_is_no_question_is_named(line, problem, tmp_path):
    """Such a line ends `evaluate` with an error that names file, line and problem; several are named at once."""
    file = tmp_path / "held.jsonl"
    file.write_text(f'{{"prompt": "1", "answer": "2"}}\n{line}\n\n{line}\n')
    with pytest.raises(ConfigError) as error:
        read_questions(file)
    starts = [f"--task-data-path {file}, line {number}: {problem}" for number in (2, 4)]
    assert all(found.startswith(start) for found, start in zip(error.value.errors, starts, strict=True))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    """A --task-data-path that cannot be read is a ConfigError with flag, path and cause."""
    with pytest.raises(ConfigError, match=f"--task-data-path {tmp_path}/none.jsonl: cannot be read \\(No such file"):
        read_questions(tmp_path / "none.jsonl")


@pytest.mark.parametrize("command", ["generate", "evaluate"])
def test_a_missing_folder_is_named_without_mindspore(command, tmp_path, monkeypatch):
    """MindSpore's import takes seconds; in this process it fails."""
    held = tmp_path / "held.jsonl"
    held.write_text('{"prompt": "1", "answer": "2"}\n')
    given = {"generate": ("--prompt", "1"), "evaluate": ("--task-data-path", str(held))}[command]
    words = ["-m", "mapping", command, "--load", str(tmp_path / "none"), *given]
    (tmp_path / "mindspore.py").write_text("raise SystemExit('MindSpore is imported')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and f"{tmp_path}/none: there is no such folder" in done.stderr, done.stderr


def test_a_question_that_the_model_has_no_room_or_no_ids_for_is_named(tmp_path):
    """Questions too long, with ids beyond the vocabulary, or that no ids stand for are errors that name each line."""
    file = tmp_path / "held.jsonl"
    file.write_text(
        '{"prompt": "1 2 3", "answer": "4"}\n{"prompt": "1", "answer": "70"}\n{"prompt": "x", "answer": "y"}'
    )
    writer = Writer(build_tokenizer(TokenizerOptions("NullTokenizer", vocab_size=100)))
    with pytest.raises(ConfigError) as error:
        writer.tasks(file, read_questions(file), room=3, ids=60)
    first, second, third = error.value.errors
    assert "line 1: has 4 tokens, the model's sequence 3" in first and "line 2: has token 70" in second
    assert f"{file}, line 3" in third


def test_a_template_writes_the_question_and_ends_the_answer():
    """Ids of question and answer are those that fine-tuning with --prompt-type learns; the template's end of the answer
    counts in the loss."""
    tokenizer = build_tokenizer(
        TokenizerOptions("HuggingFaceTokenizer", tokenizer_model=str(inputs() / "tokenizers/hf_qwen2"))
    )
    chat = Chat(load_template("qwen"), tokenizer)
    writer = Writer(tokenizer, chat)
    (task,) = writer.tasks(Path("held.jsonl"), [(1, Question("Say so.", "So."))], room=100, ids=10**6)
    end = tokenizer.token_to_id("<|im_end|>")
    assert tokenizer.detokenize(task.prompt).endswith("user\nSay so.\nassistant\n") and task.prompt.count(end) == 2
    assert task.answer == [*tokenizer.encode("So."), end] and end in chat.ends
