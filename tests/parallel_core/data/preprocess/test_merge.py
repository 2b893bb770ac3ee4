"""`preprocess merge`: several data sets joined to one."""

import numpy as np
import pytest

from parallel_core.data.indexed_dataset import IndexedDataset, IndexedDatasetBuilder, bin_path, idx_path
from parallel_core.data.preprocess.command_line import main


def write(prefix, documents, dtype=np.uint16, modes=False) -> str:
    """Write a data set of documents, each a list of sequences of ids; with `modes` a multimodal one."""
    with IndexedDatasetBuilder(prefix, dtype, multimodal=modes) as builder:
        for document in documents:
            tokens = [token for sequence in document for token in sequence]
            builder.add_document(tokens, [len(sequence) for sequence in document], [1] * len(document))
        builder.finalize()
    return str(prefix)


@pytest.mark.parametrize("modes", [False, True])
def test_merged_files_are_those_of_all_documents_in_one_go(tmp_path, modes):
    """Merging data sets, listed or as a folder, gives the bytes of one data set written with all documents."""
    parts = [[[[1, 2], [3]], []], [[[4]]], [[[5, 6, 7]], [], [[8]]]]
    prefixes = [write(tmp_path / "in" / f"{name}", part, modes=modes) for name, part in zip("abc", parts, strict=True)]
    whole = write(tmp_path / "whole", [document for part in parts for document in part], modes=modes)
    assert main(["merge", *prefixes, "--output-prefix", str(tmp_path / "merged")]) == 0
    assert main(["merge", "--input", str(tmp_path / "in"), "--output-prefix", str(tmp_path / "folder")]) == 0
    for path in (bin_path, idx_path):
        assert (
            path(whole).read_bytes() == path(tmp_path / "merged").read_bytes() == path(tmp_path / "folder").read_bytes()
        )


def test_the_order_is_that_of_the_command(tmp_path, capsys):
    """Data sets are joined in the order of the command line."""
    prefixes = [write(tmp_path / name, [[[number]]]) for number, name in enumerate("ab")]
    main(["merge", *reversed(prefixes), "--output-prefix", str(tmp_path / "merged")])
    assert IndexedDataset(tmp_path / "merged").tokens.tolist() == [1, 0]
    assert "2 data sets, 2 documents, 2 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("merge {a} {other} --output-prefix {out}", "has tokens of int32"),
        ("merge {a} {modes} --output-prefix {out}", "one is multimodal, the other is not"),
        ("merge {a} nowhere --output-prefix {out}", "nowhere.idx does not exist"),
        ("merge {a} --output-prefix {a}", "is among the data sets that are merged"),
        ("merge {a} --input {out} --output-prefix {out}", "either data sets or --input"),
        ("merge --output-prefix {out}", "either data sets or --input"),
        ("merge --input {out} --output-prefix {out}", "is no folder"),
        ("merge --input {empty} --output-prefix {out}", "has no .bin and .idx files"),
        ("merge --input {half} --output-prefix {out}", "x.idx does not exist"),
    ],
)
def test_what_cannot_be_merged_is_said_and_nothing_is_written(tmp_path, capsys, arguments, message):
    """Data sets of other types or kinds, missing ones, or an output that is an input are an error, and no file
    changes."""
    names = {name: tmp_path / name for name in ("a", "other", "modes", "out", "empty", "half")}
    write(names["a"], [[[1]]])
    write(names["other"], [[[1]]], np.int32)
    write(names["modes"], [[[1]]], modes=True)
    names["empty"].mkdir()
    names["half"].mkdir()
    (names["half"] / "x.bin").write_bytes(b"")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as stopped:
        main(arguments.format(**names).split())
    assert stopped.value.code == 2 and message in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
