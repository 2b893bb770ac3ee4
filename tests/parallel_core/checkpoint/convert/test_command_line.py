"""The options of `convert`: which go together, and its errors before anything is written."""

import json

import pytest

from parallel_core.checkpoint.convert.__main__ import main, parser
from tests.support.checkpoint_cases import unpack

QUIET = ("--logits", "no", "--no-verify")


@pytest.mark.parametrize(
    ("target", "flag", "others"),
    [
        ("hf", "--make-vocab-size-divisible-by 8", "native or megatron"),
        ("hf", "--tensor-model-parallel-size 2", "native or megatron"),
        ("native", "--pipeline-model-parallel-size 2", "megatron"),
        ("hf", "--num-layers-per-virtual-pipeline-stage 1", "megatron"),
        ("native", "--expert-model-parallel-size 1", "megatron"),
        ("native", "--expert-tensor-parallel-size 2", "megatron"),
        ("megatron", "--huggingface-model-type llama", "hf"),
        ("native", "--tokenizer-model .", "hf"),
    ],
)
def test_a_flag_of_another_target_is_refused(target, flag, others, tmp_path, capsys):
    """A flag about a layout that the target (`--to`) does not have is refused with any value, as it would do nothing;
    the error names the targets that have it."""
    source, name = unpack("hf/llama", tmp_path), flag.split()[0]
    assert main(["--input", str(source), "--output", str(tmp_path / "o"), "--to", target, *flag.split(), *QUIET]) == 1
    said = capsys.readouterr().err
    assert said == f"error: {flag}: says nothing of a checkpoint --to {target}; remove it, or convert --to {others}\n"
    assert name in parser().format_help() and not (tmp_path / "o").exists()


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_sizes_are_whole_numbers_from_one_on(value, tmp_path, capsys):
    """A parallel size that is no whole number from 1 on is a usage error, exit code 2."""
    with pytest.raises(SystemExit) as end:
        main(["--input", str(tmp_path), "--output", str(tmp_path / "o"), "--tensor-model-parallel-size", value])
    assert end.value.code == 2 and f"{value!r} is no whole number from 1 on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--to hf --output {}/file", "--output {}/file: is no folder"),
        ("--to hf --output {}/full", "--output {}/full: is not empty"),
        ("--output {}", "--output {}: is --input, too"),
        ("--to hf --output {}/new --tokenizer-model {}/file", "--tokenizer-model {}/file: is no folder"),
        ("--output {}/new --logits yes --no-verify", "--logits yes: compares what was written"),
        (
            "--to megatron --output {}/new --tensor-model-parallel-size 2 --expert-tensor-parallel-size 4",
            "--expert-tensor-parallel-size 4: must divide --tensor-model-parallel-size 2",
        ),
        ("--to megatron --output {}/new --expert-tensor-parallel-size 2", "--tensor-model-parallel-size 1"),
    ],
)
def test_options_that_do_not_do(arguments, words, tmp_path, capsys):
    """An --output that is a file, not empty, or the input itself, a --tokenizer-model that is no folder, --logits yes
    beside --no-verify, and experts cut into more parts than files can have are refused with the flag."""
    (tmp_path / "file").touch()
    (tmp_path / "full" / "a").mkdir(parents=True)
    assert main(["--input", str(tmp_path), *arguments.format(tmp_path, tmp_path).split()]) == 1
    assert words.format(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize(("name", "rule"), [("file", "is a file"), ("nowhere", "there is no such folder")])
def test_no_folder_of_a_checkpoint(name, rule, tmp_path, capsys):
    """An --input that is a file or does not exist is one line that begins with "error:"."""
    (tmp_path / "file").touch()
    source = tmp_path / name
    assert main(["--input", str(source), "--output", str(tmp_path / "o"), "--to", "native"]) == 1
    assert capsys.readouterr().err == f"error: {source}: {rule}; give the folder of a checkpoint\n"


def test_the_tokenizer_travels(tmp_path, capsys):
    """Tokenizer files are copied from the HuggingFace source or from --tokenizer-model, and special ids go into
    config.json; our own format does not store them, and the command says so."""
    source = unpack("hf/llama", tmp_path)
    (source / "tokenizer.json").write_text("{}")
    config = json.loads((source / "config.json").read_text()) | {"eos_token_id": [7, 9], "bos_token_id": None}
    (source / "config.json").write_text(json.dumps(config))
    ours, written = tmp_path / "ours", []

    def convert(*arguments: object) -> str:
        assert main([*map(str, arguments), *QUIET]) == 0
        return capsys.readouterr().out

    said = convert("--input", source, "--output", ours)
    assert f"generation_config.json; --to hf later takes them by --tokenizer-model {source}" in said
    for number, (start, *more) in enumerate([(source,), (ours, "--tokenizer-model", source), (ours,)]):
        written.append(tmp_path / f"hf{number}")
        said = convert("--input", start, "--output", written[-1], "--to", "hf", *more)
        assert ("copied as they are: tokenizer.json" in said) == (number < 2)
    assert "no tokenizer was copied: --tokenizer-model DIR" in said
    assert [(folder / "tokenizer.json").exists() for folder in written] == [True, True, False]
    configs = [json.loads((folder / "config.json").read_text()) for folder in written]
    assert [config.get("eos_token_id") for config in configs] == [[7, 9], [7, 9], None]
