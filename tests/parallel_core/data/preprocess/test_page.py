"""The commands of docs/data.md, run in the order of the page."""

import gzip
import json
import re
import shlex

from parallel_core.data.preprocess.command_line import main
from tests.support.assets import ROOT
from tests.support.tokenizer_records import unpack

COMMAND = "python -m mapping preprocess "


def test_the_commands_of_the_page_run_as_shown(tmp_path, monkeypatch, capsys):
    """Each command of the page succeeds on files of the names that it uses, and prints the expected counts."""
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(commands) == 6 and all(command.startswith(COMMAND) for command in commands)
    (unpack(tmp_path) / "hf_qwen2").rename(tmp_path / "tokenizer")
    lines = "".join(json.dumps({"title": f"Title {n}", "text": f"Some text {n}."}) + "\n" for n in range(5))
    (tmp_path / "corpus.jsonl").write_text(lines)
    (tmp_path / "shards").mkdir()
    for name in "ab":
        (tmp_path / "shards" / f"{name}.jsonl.gz").write_bytes(gzip.compress(f"{lines}no JSON\n".encode()))
    monkeypatch.chdir(tmp_path)
    said = []
    for command in commands:
        assert main(shlex.split(command.removeprefix(COMMAND))) == 0
        said.append(capsys.readouterr().out)
    assert "5 documents" in said[0] and "--data-path mine_text_document" in said[0]
    assert "2 records left out" in said[1] and "10 documents" in said[1] and "shards/all_title_document" in said[1]
    assert "2 data sets, 15 documents" in said[2] and "2 data sets, 20 documents" in said[3]
    assert "documents: 5\n" in said[4]
    assert "sequence 3 (" in said[5] and "'Some text 3.<|im_end|>'" in said[5]
