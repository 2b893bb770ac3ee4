"""Our reader of torch.save files: it runs no code, stays within the file's storages and in bounded memory, and reads
what was written."""

import contextlib
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from parallel_core.checkpoint.convert import formats
from parallel_core.checkpoint.lazy import of_array
from parallel_core.checkpoint.torch_files.archive import read_archive
from parallel_core.checkpoint.torch_files.pickles import StandIn, read_pickle
from parallel_core.checkpoint.torch_files.write import Namespace, write_archive


class Call:
    """An object that pickles as a call of `function(*arguments)`, with a state to set if given."""

    def __init__(self, function, *arguments, state=None):
        self.parts = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.parts


class Entries(list):
    """A list of a class that the reader does not know."""


@pytest.mark.parametrize("entries", [[1], [1, 2, 3], [[1, 2], 3]])
def test_a_stand_in_has_a_lists_entries(entries):
    """The items of a stand-in for a subclass of list are the list's entries, one or several, which pickle hands over in
    different ways."""
    assert read_pickle(pickle.dumps(Entries(entries), 2), "it").items == entries


def test_a_device_is_its_name():
    """torch.device is read as the name of the device, with its number if there is one."""
    assert read_pickle(b"\x80\x02ctorch\ndevice\nX\x03\x00\x00\x00cpu\x85R.", "it") == "cpu"
    assert read_pickle(b"\x80\x02ctorch\ndevice\nX\x04\x00\x00\x00cudaK\x01\x86R.", "it") == "cuda:1"


def attacks(mark: Path) -> dict[str, object]:
    """Objects whose loading would leave the file `mark` behind, were it done by pickle."""
    code = f"open({str(mark)!r}, 'w')"
    return {
        "a command": Call(os.system, f"touch {mark}"),
        "eval": Call(eval, code),
        "exec": Call(exec, code),
        "a file": Call(open, str(mark), "w"),
        "an import": Call(__import__, "os"),
        "getattr": Call(getattr, Call(__import__, "os"), "system"),
        "a nested one": {"args": [Call(map, eval, [code])]},
        "with a state": Call(Path, str(mark), state={"touch": Call(eval, code)}),
    }


@pytest.mark.parametrize("name", attacks(Path("mark")))
@pytest.mark.parametrize("protocol", [2, 4])
def test_nothing_is_called(name, protocol, tmp_path):
    """A pickled call, in a bare pickle or in an archive, becomes a stand-in or an error; the file `mark`, which the
    call would make, does not exist."""
    mark = tmp_path / "mark"
    data = pickle.dumps(attacks(mark)[name], protocol)
    archive = tmp_path / "model_optim_rng.pt"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", data)
    for read in (lambda: read_pickle(data, "it"), lambda: read_archive(archive)):
        with contextlib.suppress(ValueError):
            assert isinstance(read(), StandIn | dict)
    assert not mark.exists()


def test_an_evil_checkpoint_is_refused(tmp_path):
    """A Megatron checkpoint with a pickled command is refused with the file's name, and the command did not run."""
    folder = tmp_path / "mp_rank_00"
    folder.mkdir()
    with zipfile.ZipFile(folder / "model_optim_rng.pt", "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(Call(os.system, f"touch {tmp_path / 'mark'}"), 2))
    with pytest.raises(ValueError, match=r"model_optim_rng\.pt"):
        formats.read(tmp_path)
    assert not (tmp_path / "mark").exists()


CONTENT = {
    "args": Namespace(a=1, b=None, c=[True, "x", 2.5, (1, -(1 << 70))]),
    "model": {"w": of_array(np.arange(6, dtype=np.float32).reshape(2, 3)), "s": of_array(np.zeros((), np.int64))},
    "half": of_array(np.array([0x3F80], np.uint16), "bfloat16"),
}


def test_what_is_written_is_read(tmp_path):
    """`write_archive` and `read_archive` agree on tensors with and without axes, bfloat16, plain values, and a
    namespace, which is read as its entries."""
    write_archive(tmp_path / "f.pt", CONTENT)
    found = read_archive(tmp_path / "f.pt")
    assert found["args"].path == "argparse.Namespace" and found["args"].state == dict(CONTENT["args"])
    np.testing.assert_array_equal(found["model"]["w"].read(), [[0, 1, 2], [3, 4, 5]])
    assert found["model"]["s"].read().shape == () and found["half"].widened().tolist() == [1.0]


def test_a_tensor_beyond_its_storage_is_refused(tmp_path):
    """A pickle that gives a tensor a larger shape than its storage has is refused."""
    write_archive(tmp_path / "f.pt", CONTENT)
    with zipfile.ZipFile(tmp_path / "f.pt") as file:
        entries = {name: file.read(name) for name in file.namelist()}
    for old, number in ((b"J\3\0\0\0", 4), (b"J\2\0\0\0", (1 << 31) - 1)):
        new = b"J" + number.to_bytes(4, "little")
        changed = entries | {"archive/data.pkl": entries["archive/data.pkl"].replace(old, new)}
        assert changed != entries
        with zipfile.ZipFile(tmp_path / "g.pt", "w") as file:
            for name, data in changed.items():
                file.writestr(name, data)
        with pytest.raises(ValueError, match="does not fit into its storage"):
            read_archive(tmp_path / "g.pt")


@pytest.mark.parametrize("size", [0, 10, 200, 1000])
def test_a_file_that_is_cut_off_is_named(size, tmp_path):
    """An archive cut off at any length is an error with its path."""
    write_archive(tmp_path / "f.pt", CONTENT)
    content = (tmp_path / "f.pt").read_bytes()
    assert len(content) > size
    (tmp_path / "f.pt").write_bytes(content[:size])
    with pytest.raises(ValueError, match=r"f\.pt"):
        read_archive(tmp_path / "f.pt")
