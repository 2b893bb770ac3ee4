"""`python -m mapping explain`: its answer in text and JSON, and docs/flags.md, which it writes."""

from __future__ import annotations

import json
import sys
from errno import EACCES

import pytest

from mapping.explain import main
from mapping.flag_reference import field_sentences, reference
from parallel_core.config.tree import OPTIONS
from parallel_core.data.indexed_dataset import IndexedDatasetBuilder
from tests.support.assets import ROOT
from tests.support.mapping.lines import line
from tests.support.processor_time import command_seconds


def answer(capsys, change: str, *options: str) -> dict:
    """The JSON answer of `explain` for the changed good line; its exit code must agree with `starts`."""
    code = main(["--json", *options, "--", *line(change)])
    result = json.loads(capsys.readouterr().out)
    assert code == (0 if result["starts"] else 1)
    return result


@pytest.mark.parametrize(
    "change, status, target, value",
    [
        ("--clip-grad 0.5", "mapped", "optimizer_config.clip_grad", 0.5),
        ("--swiglu", "mapped", "model_config.hidden_act", "swiglu"),
        ("--disable-bias-linear", "mapped", "model_config.add_bias_linear", False),
        ("--clip-grad=0.25", "mapped", "optimizer_config.clip_grad", 0.25),
        ("--is-instruction-dataset", "mapped", "dataset_config.instruction.enabled", True),
        ("--no-persist-layer-norm", "ignored", "", False),
        ("--fp4-recipe nvfp4", "ignored", "", "nvfp4"),
        ("--fp4-recipe custom", "refused", "", "custom"),
        ("--fp8-margin 1", "ignored", "", 1),
    ],
)
def test_what_becomes_of_a_flag(capsys, change, status, target, value):
    """The answer has each flag's status, config field, value and, unless mapped, the reason."""
    outcome = answer(capsys, change)["flags"][-1]
    assert (outcome["flag"], outcome["status"], outcome["target"], outcome["value"]) == (
        change.split()[0].split("=")[0],
        status,
        target,
        value,
    )
    assert bool(outcome["reason"]) == (status != "mapped")


def test_the_answer_for_a_world_of_any_size(capsys):
    """--world-size 10240 gives the data-parallel size and micro-batches of such a job."""
    result = answer(capsys, "--tensor-model-parallel-size 2 --global-batch-size 10240", "--world-size", "10240")
    assert result["starts"] and result["config"]["parallel_config"]["data_parallel_size"] == 5120
    assert result["config"]["dataset_config"]["micro_batch_num"] == 1


def test_memory_of_each_stage_is_in_the_answer(capsys):
    """The answer has a rank's memory by stage and part; the distributed optimizer lowers it, and the text joins stages
    that need the same to one line."""
    change = "--num-layers 8 --pipeline-model-parallel-size 4 --bf16"
    first, *_, last = answer(capsys, change, "--world-size", "8")["memory"]
    assert first["total"] == sum(first["parts"].values())
    assert first["parts"]["activations"] > last["parts"]["activations"]
    shared = answer(capsys, f"{change} --use-distributed-optimizer", "--world-size", "8")["memory"][0]["parts"]
    first = first["parts"]
    assert shared["optimizer"] < first["optimizer"] and shared["gradients"] == first["gradients"]
    assert main(["--world-size", "8", "--", *line(f"{change} --pipeline-schedule gpipe")]) == 0
    table = capsys.readouterr().out.partition("memory of a rank, in MiB")[2]
    assert "\n  1 - 2 " in table and "optimizer" in table


def test_what_a_cpu_does_not_keep_is_in_the_answer(capsys):
    """--device-target CPU counts fewer activations (results of norms and activations are not kept) and a sentence says
    so, about what is recomputed unasked alone; with --kernels ops neither."""
    fewer, more = (answer(capsys, flags)["memory"][0]["parts"]["activations"] for flags in ("--device-target CPU", ""))
    assert fewer < more
    for flags, sentence in (
        ("--device-target CPU", "On a CPU results of norms and of activation functions are recomputed"),
        ("--device-target CPU --apply-residual-connection-post-layernorm", "results of activation functions are"),
        ("--device-target CPU --select-recompute-exclude ['mlp\\\\.activation']", "results of norms are"),
        ("--select-recompute-exclude ['mlp\\\\.activation','.*_layernorm']", None),
        ("", "--device-target CPU counts so"),
        ("--kernels ops", None),
    ):
        main(["--", *line(flags)])
        table = capsys.readouterr().out.partition("memory of a rank, in MiB")[2]
        assert (sentence or "weights") in table and ("On a CPU" in table) is (sentence is not None)


def test_states_in_host_memory_are_told_apart(capsys):
    """Offloaded optimizer states have a column of their own, and are not in the total."""
    (kept,), (moved,) = (answer(capsys, flags)["memory"] for flags in ("", "--cpu-offload-optimizer"))
    assert kept["elsewhere"]["optimizer"] == 0 < moved["elsewhere"]["optimizer"] == kept["parts"]["optimizer"]
    assert moved["total"] == kept["total"] - kept["parts"]["optimizer"]
    main(["--", *line("--cpu-offload-optimizer")])
    assert "optimizer in host memory" in capsys.readouterr().out


def test_a_heading_is_a_whole_sentence():
    """A heading of docs/flags.md is one whole sentence; the full stop of "et al." does not end it."""
    headings = [line for line in reference().splitlines() if line.startswith("## ")]
    assert [line for line in headings if "et al." in line]
    assert not [line for line in headings if line.endswith(" al") or ". " in line.replace("et al. ", "")]


def test_a_refused_job_needs_no_memory(capsys):
    """The answer about a command line with errors has no memory."""
    assert answer(capsys, "--lr x")["memory"] == []


def test_errors_are_in_the_answer(capsys):
    """All errors are in the JSON answer, and `starts` is false."""
    result = answer(capsys, "--lr x --hidden-size 65")
    assert not result["starts"] and len(result["errors"]) == 2


def test_files_are_looked_at_only_when_asked(capsys, tmp_path):
    """Missing files are errors with --check-files alone; with it the vocabulary's size is read from the file."""
    vocabulary = tmp_path / "vocab.json"
    change = f"~vocab-size --tokenizer-type GPT2BPETokenizer --vocab-file {vocabulary} --merge-file {vocabulary}"
    assert answer(capsys, change)["starts"]
    assert not answer(capsys, change, "--check-files")["starts"]
    tokens = ["!", "Ġ", "Ċ", "ÿ", "<|endoftext|>", *map(str, range(295))]
    vocabulary.write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    result = answer(capsys, change, "--check-files")
    assert result["config"]["model_config"]["vocab_size"] == 384


def test_pieces_of_a_sentencepiece_model_are_counted(capsys, tmp_path):
    """The size of a SentencePiece model is counted from its file without the package: pieces are field 1, others are
    passed over; another file is an error."""
    piece = bytes([0x0A, 4, 0x0A, 2]) + b"ab"
    (tmp_path / "x.model").write_bytes(piece * 200 + bytes([0x12, 3, 0x28, 0x96, 1]) + bytes([0x18, 0x96, 1]) + piece)
    change = f"~vocab-size --tokenizer-type Llama2Tokenizer --tokenizer-model {tmp_path}/x.model"
    result = answer(capsys, f"{change} --make-vocab-size-divisible-by 3", "--check-files")
    assert result["starts"] and result["config"]["model_config"]["unpadded_vocab_size"] == 201
    (tmp_path / "x.model").write_bytes(b"no such message")
    assert not answer(capsys, change, "--check-files")["starts"]


def test_missing_data_is_found_by_either_suffix(capsys, tmp_path):
    """--check-files reports each missing .bin and .idx of --data-path."""
    (tmp_path / "a.bin").touch()
    result = answer(capsys, f"--data-path 0.5 {tmp_path}/a 0.5 {tmp_path}/b", "--check-files")
    assert [error.split("no file ")[1].split(";")[0] for error in result["errors"]] == [
        f"{tmp_path}/a.idx",
        f"{tmp_path}/b.bin",
        f"{tmp_path}/b.idx",
    ]


@pytest.mark.parametrize(
    ("path", "fix"),
    [("a.idx", "leave .bin and .idx out"), ("0.5,a", "separate weights"), ("a", "give a prefix that has both")],
)
def test_a_wrong_prefix_is_answered_by_its_fix(capsys, path, fix):
    """A --data-path with a suffix or a comma, or without files, is an error with the fix."""
    assert fix in answer(capsys, f"--data-path {path}", "--check-files")["errors"][0]


def _empty(prefix) -> None:
    """Write a data set without documents."""
    with IndexedDatasetBuilder(prefix) as builder:
        builder.finalize()


def test_an_index_without_read_permission_is_an_error(capsys, tmp_path, monkeypatch):
    """An .idx file that the system does not open is an error with --data-path, the file and the fix; the test's user
    may be root, who may read any file, so that the refusal is a stand-in's."""

    def refuse(path, *_, **__):
        raise PermissionError(EACCES, "Permission denied", str(path))

    _empty(tmp_path / "a")
    monkeypatch.setattr("parallel_core.data.indexed_dataset.np.memmap", refuse)
    (error,) = answer(capsys, f"--data-path {tmp_path}/a", "--check-files")["errors"]
    assert error.startswith("--data-path") and f"{tmp_path}/a.idx cannot be read (Permission denied); make it" in error


@pytest.mark.parametrize(
    "flags, files, missing",
    [
        ("--stage sft", "labels attention_mask", "a_packed_input_ids_document"),
        ("--is-instruction-dataset", "input_ids labels", "a_packed_attention_mask_document"),
        ("--sft --tokenizer-type SFTTokenizer", "", "a"),
    ],
)
def test_data_of_conversations_are_looked_for_by_their_names(capsys, tmp_path, flags, files, missing):
    """Instruction data need three pairs of files with their own names, --sft one file of messages; the missing one is
    named, and nothing else is asked for."""
    for part in files.split():
        _empty(tmp_path / f"a_packed_{part}_document")
    result = answer(capsys, f"--data-path {tmp_path}/a {flags}", "--check-files")
    named = {error for error in result["errors"] if "--data-path" in error}
    assert named and all(str(tmp_path / missing) in error for error in named)
    _empty(tmp_path / missing) if files else (tmp_path / missing).touch()
    result = answer(capsys, f"--data-path {tmp_path}/a {flags}", "--check-files")
    assert [error for error in result["errors"] if "--data-path" in error] == []


def test_the_text_answer_names_flags_config_and_errors(capsys):
    """The text answer with --verbose begins with the errors and prints the config by section and field."""
    main(["--verbose", "--", *line("--lr x")])
    text = capsys.readouterr().out
    assert "model_config.num_layers = 4" in text and "model_config:" in text and text.startswith("error: --lr x")
    assert "wrong    --lr " in text


def test_all_errors_are_said_at_once(capsys):
    """Errors of different rules are reported together; a flag that an error names is called wrong, not mapped."""
    main(["--", *line("--lora-r 2 --lora-target-modules nothing --swiglu --hidden-act relu --min-lr -1")])
    text = capsys.readouterr().out
    assert "error: --lora-target-modules nothing: names no linear" in text and "error: --min-lr -1" in text
    for flag in ("--lora-target-modules", "--min-lr", "--hidden-act"):
        assert f"wrong    {flag} " in text and f"mapped   {flag} " not in text


def test_a_flag_that_a_size_makes_idle_is_said(capsys):
    """A flag that another value makes useless (sequence parallelism at tp 1, an evaluation interval without evaluation)
    is ignored with the reason."""
    main(["--", *line("--sequence-parallel --eval-iters 0 --eval-interval 5")])
    text = " ".join(capsys.readouterr().out.split())
    assert "ignored --sequence-parallel no effect: it does nothing at tensor-parallel size 1" in text
    assert "ignored --eval-interval 5 no effect: --eval-iters 0 asks for no evaluation" in text


@pytest.mark.parametrize("argv", [[], ["--num-layers", "2"], ["--num-layers", "2", "--", "--lr", "1"]])
def test_it_says_where_the_scripts_arguments_go(capsys, argv):
    """A script's flags without -- before them are an error that says where they go."""
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2 and "come after --" in capsys.readouterr().err


@pytest.mark.slow
def test_it_starts_without_mindspore_and_fast():
    """`explain` runs without MindSpore in under 2.5 s of processor time, interpreter included (usually half a
    second)."""
    code = (
        "import sys; sys.modules['mindspore'] = None; from mapping.explain import main; "
        f"sys.exit(main(['--json', '--', *{line()!r}]))"
    )
    assert command_seconds([sys.executable, "-c", code])[0] < 2.5


def test_the_reference_page_is_the_tables():
    """docs/flags.md is what `explain --doc` writes from the tables."""
    assert (ROOT / "docs/flags.md").read_text(encoding="utf-8") == reference(), "run python -m mapping explain --doc"


def test_every_config_field_has_its_sentence():
    """Each config option has a sentence under its field."""
    sentences = field_sentences()
    for path in OPTIONS:
        assert sentences.get(path, "").endswith("."), path
