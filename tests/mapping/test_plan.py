"""`python -m mapping plan`: the JSON object and its schema, the printed lines, errors."""

from __future__ import annotations

import json
import re
import types
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import pytest
import yaml

from mapping.plan import main
from parallel_core.planner.answer import Answer
from tests.support.mapping.yaml_files import MEGATRON

FLAGS = (
    "--num-layers 16 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 "
    "--tokenizer-type NullTokenizer --vocab-size 51199 --mock-data --micro-batch-size 1 --global-batch-size 512 "
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --train-iters 500 --lr 1e-4 --bf16"
)


def fits_type(value: Any, hint: Any) -> bool:
    """Whether a JSON value has the annotated type; a TypedDict must have exactly its keys."""
    if is_typeddict(hint):
        hints = get_type_hints(hint)
        return (
            isinstance(value, dict)
            and value.keys() == hints.keys()
            and all(fits_type(value[key], hints[key]) for key in hints)
        )
    if get_origin(hint) is types.UnionType:
        return any(fits_type(value, part) for part in get_args(hint))
    if get_origin(hint) is list:
        return isinstance(value, list) and all(fits_type(entry, get_args(hint)[0]) for entry in value)
    if get_origin(hint) is dict:
        return isinstance(value, dict) and all(fits_type(entry, get_args(hint)[1]) for entry in value.values())
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def run(capsys: pytest.CaptureFixture[str], *options: str, flags: str = FLAGS) -> tuple[int, str, str]:
    """(exit code, output, errors) of the command."""
    code = main([*options, "--", *flags.split()])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_world_size_of_the_environment_that_is_no_number(capsys, monkeypatch):
    """It is an error of the user's, said without a traceback."""
    monkeypatch.setenv("RANK_SIZE", "x")
    code, out, err = run(capsys)
    assert (code, out) == (2, "") and err.startswith("error: RANK_SIZE x: is no whole number")


@pytest.mark.parametrize("flag", ["--draw", "--draw-memory", "--draw-ranks"])
def test_a_drawing_that_cannot_be_written(capsys, tmp_path, flag):
    """It is an error with the flag and the path, without a traceback."""
    (tmp_path / "file").write_text("")
    code, out, err = run(capsys, "--world-size", "64", flag, str(tmp_path / "file" / "step.svg"))
    assert (code, out) == (2, "") and err.startswith(f"error: {flag} {tmp_path}/file/step.svg: cannot be written (")


def test_the_kernel_of_attention_is_what_the_flags_say(capsys):
    """On an A100 attention keeps its scores, which is said, unless a flag names a fused kernel; on an H100 it keeps
    none without --attention-backend unfused."""

    def activations(device: str, more: str) -> tuple[float, bool]:
        _, out, _ = run(capsys, "--world-size", "64", "--device", device, "--json", flags=f"{FLAGS} {more}")
        found = json.loads(out)
        said = any("matrix of scores" in line for line in found["assumptions"])
        return found["memory"]["stages"][0]["parts"]["activations"], said

    kept, fused = activations("A100", ""), activations("A100", "--use-flash-attn")
    assert kept[1] and not fused[1] and kept[0] > 1.2 * fused[0]
    assert activations("A100", "--attention-backend flash") == fused == activations("A100", "--attention-backend fused")
    assert activations("A100", "--attention-backend auto") == kept
    assert activations("H100", "")[1] is False and activations("H100", "--attention-backend unfused")[1]


@pytest.mark.parametrize("more", ["", "--num-experts 8 --expert-model-parallel-size 4 --moe-router-topk 2"])
def test_the_object_for_programs(capsys, more):
    """--json fits the schema `Answer`; parts of memory and step add up, values lie in their ranges, and exit code 0
    means that it fits."""
    options = ["--world-size", "1024", "--device", "A100", "--json"]
    code, out, _ = run(capsys, *options, flags=f"{FLAGS} {more}")
    found = json.loads(out)
    assert fits_type(found, Answer)
    assert found["fits"] == (code == 0)
    assert len(found["memory"]["stages"]) == 4
    for stage in found["memory"]["stages"]:
        assert sum(stage["parts"].values()) == stage["total_bytes"]
        assert stage["low_bytes"] < stage["total_bytes"] < stage["high_bytes"]
    step = found["step_seconds"]
    assert step["total"] == pytest.approx(sum(step["parts"].values()))
    assert step["low"] < step["total"] < step["high"]
    assert 0 < found["mfu"] <= found["hfu"] < 1 and 0 < found["bubble_fraction"] < 1
    assert found["run"]["days"] == pytest.approx(500 * step["total"] / 86400)


def test_the_lines_for_people(capsys):
    """The first line says whether the job fits, with its range; exit code 1 if it does not."""
    code, out, _ = run(capsys, "--world-size", "16", "--device", "B200")
    first = out.splitlines()[0]
    assert code == 0 and first.startswith("fits 177.9 GiB of B200-SXM: ") and "+-" in first and "stage 0" in first
    assert re.search(r"500 steps: [1-9][\d.,]* (minutes|hours|days) \+-", out), "a short run is no 0.00 days"
    code, out, _ = run(capsys, "--world-size", "8", "--device", "A100", flags=f"{FLAGS} --micro-batch-size 64")
    assert code == 1 and out.startswith("does not fit")


def test_a_refused_flag_is_a_warning(capsys):
    """A flag that training refuses is planned without, and named."""
    _, out, _ = run(capsys, "--world-size", "8", "--device", "A100", flags=f"{FLAGS} --no-such-flag")
    assert "training refuses --no-such-flag" in out


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"language_model": {**MEGATRON["language_model"], "hidden_size": 30}}, 2, "hidden_size 30: "),
        ({"num_layers": "four"}, 2, "num_layers four: "),
        ({"hidden_sizes": 64}, 0, "training refuses hidden_sizes: there is no such key"),
        ({"fp4": "e2m1"}, 0, "training refuses fp4 e2m1: "),
    ],
)
def test_keys_of_a_file_stop_a_plan_as_flags_do(capsys, tmp_path, change, code, words):
    """A rule that a file's key breaks stops the plan; keys that are refused or that nobody knows are named."""
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(MEGATRON | change))
    found, out, err = run(capsys, "--world-size", "1", flags=f"--yaml-cfg {path}")
    assert found == code and words in (err if code else out)


@pytest.mark.parametrize(
    ("options", "more", "words"),
    [
        ("--device abacus", "", "--device abacus: is no known device"),
        ("--device A100", "--num-attention-heads 15", "--num-attention-heads 15"),
        ("--device A100 --world-size 12", "", "12"),
    ],
)
def test_errors(capsys, options, more, words):
    """An unknown device or an impossible layout is an error with flag and value, exit code 2, without output."""
    code, out, err = run(capsys, *options.split(), flags=f"{FLAGS} {more}")
    assert code == 2 and out == "" and words in err


def test_a_vocabulary_that_only_files_say_is_assumed(capsys):
    """A vocabulary size that only missing tokenizer files would give is assumed, and named among the assumptions."""
    flags = FLAGS.replace("NullTokenizer --vocab-size 51199", "HuggingFaceTokenizer --tokenizer-model nowhere")
    code, out, _ = run(capsys, "--world-size", "8", "--device", "A100", flags=flags)
    assert code == 0 and "--padded-vocab-size 131072 is assumed" in out
