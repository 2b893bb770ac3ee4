"""Output of the commands `generate` and `evaluate` into a pipe whose reader has ended, as `| head` does."""

import json
import os
import subprocess

from tests.support import warm
from tests.support.assets import ROOT
from tests.support.checkpoint_cases import unpack


def test_a_reader_that_leaves_is_no_error(tmp_path):
    """Both commands end with exit code 0 and no message when nobody reads what they print."""
    folder, prompts, held = unpack("hf/llama", tmp_path / "model"), tmp_path / "prompts.jsonl", tmp_path / "held.jsonl"
    prompts.write_text(json.dumps({"ids": [3, 1, 4]}) + "\n")
    held.write_text(json.dumps({"prompt": "3 1 4", "answer": "1 5"}) + "\n")
    given = {
        "generate": ["--prompts", prompts, "--json", "--max-new-tokens", "2"],
        "evaluate": ["--task-data-path", held, "--json"],
    }
    flags = ["--load", folder, "--device-target", "CPU", "--tokenizer-type", "NullTokenizer"]
    reader, writer = os.pipe()
    os.close(reader)
    commands = [[warm.programs() / "python", "-m", "mapping", name, *flags, *more] for name, more in given.items()]
    running = [subprocess.Popen(each, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True) for each in commands]
    os.close(writer)
    for process in running:
        _, said = process.communicate()
        assert process.returncode == 0 and "error" not in said.lower() and "pipe" not in said.lower(), said
