"""Checkpoints of other tools that were tampered with: each is refused with the file named, and no file outside of the
folder is opened."""

import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from parallel_core.checkpoint.convert import formats
from parallel_core.checkpoint.convert.formats import damages
from parallel_core.checkpoint.convert.native import read_native, write_native
from parallel_core.checkpoint.lazy import of_array
from parallel_core.checkpoint.tensor_file import TensorFile, write_tensors
from parallel_core.checkpoint.torch_files.archive import damaged_entry, read_archive
from parallel_core.checkpoint.torch_files.pickles import read_pickle
from parallel_core.checkpoint.torch_files.write import write_archive
from tests.support.checkpoint_cases import unpack
from tests.support.opened import opened

INDEX = "model.safetensors.index.json"


def change(path: Path, edit) -> None:
    """Edit a JSON file in place: `edit` changes the parsed object."""
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def points_to(file: object):
    """An edit of HuggingFace's index that says that the first tensor lies in `file`."""
    return lambda content: content["weight_map"].__setitem__(next(iter(content["weight_map"])), file)


INDICES = {
    "leaves the folder": (points_to("../model.safetensors"), "does not lie in it"),
    "absolute": (points_to("/etc/passwd"), "does not lie in it"),
    "another system's path": (points_to("..\\model.safetensors"), "does not lie in it"),
    "a file that is not there": (points_to("model-00009.safetensors"), "model-00009"),
    "a tensor that is not there": (
        lambda c: c["weight_map"].__setitem__("x", "model-00001-of-00004.safetensors"),
        "lacks x",
    ),
    "a number": (points_to(7), "not a whole checkpoint"),
    "a list": (lambda c: c.__setitem__("weight_map", ["x"]), "not a whole checkpoint"),
    "nothing": (lambda c: c.pop("weight_map"), "not a whole checkpoint"),
}


@pytest.mark.parametrize("name", INDICES)
def test_an_index_of_huggingfaces(tmp_path, name):
    """A model.safetensors.index.json that names files outside of the folder, files or tensors that are not there, or
    has another form is refused, and no file outside is opened."""
    edit, words = INDICES[name]
    folder = unpack("hf/mixtral", tmp_path)
    change(folder / INDEX, edit)
    with opened() as files, pytest.raises(ValueError, match=words) as error:
        formats.read(folder)
    assert str(folder) in str(error.value)
    assert all(file.is_relative_to(folder) for file in files if file.suffix not in (".py", ".pyc", ".so"))


@pytest.mark.parametrize("file", [INDEX, "config.json"])
@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, "{", '{"a": 1, "a": 2}', "\0"])
def test_json_that_is_none(tmp_path, file, text):
    """An index or config.json that is no JSON, is nested too deeply, has too long a number or one name twice is an
    error that names the file."""
    folder = unpack("hf/mixtral", tmp_path)
    (folder / file).write_text(text)
    with pytest.raises(ValueError, match=file):
        formats.read(folder)


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_local_experts"])
def test_counts_beyond_what_there_is(key, tmp_path):
    """A config.json that claims 10^9 layers or experts is refused at once by comparison with the files: no list of that
    length is made."""
    folder = unpack("hf/mixtral", tmp_path)
    change(folder / "config.json", lambda content: content.__setitem__(key, 10**9))
    with pytest.raises(ValueError, match=f"{key} 1000000000: the files have no more than"):
        formats.read(folder)


@pytest.mark.parametrize(
    ("case", "key", "value", "words"),
    [
        ("llama", "vocab_size", 149, "vocab_size 149: the embedding has 150 rows"),
        ("gpt2", "n_head", 0, "not a whole checkpoint"),
        ("llama", "num_hidden_layers", 1, r"decoder\.layers\.1\..*no such parameter"),
    ],
)
def test_sizes_that_are_not_the_files(case, key, value, words, tmp_path):
    """A size in config.json that contradicts the shapes or names of the tensors is refused with the key or the
    parameter."""
    folder = unpack(f"hf/{case}", tmp_path)
    change(folder / "config.json", lambda content: content.__setitem__(key, value))
    with pytest.raises(ValueError, match=words):
        formats.read(folder)


@pytest.mark.parametrize(("shape", "words"), [((5,), r"\[5\], by its settings it should be \[8\]"), (None, "missing")])
def test_an_expert_bias_that_does_not_fit(shape, words, tmp_path):
    """A router's expert bias of another shape, or a missing one, is refused: it is no trained parameter, but decides
    which experts are chosen."""
    folder, name = unpack("hf/deepseek_v3", tmp_path), "model.layers.1.mlp.gate.e_score_correction_bias"
    file = TensorFile(folder / "model.safetensors")
    tensors = {one: file.array(one).copy() for one in file.names if one != name}
    write_tensors(file.path, tensors | ({name: np.zeros(shape, np.float32)} if shape else {}))
    with pytest.raises(ValueError, match=rf"decoder\.layers\.1\.mlp\.router\.expert_bias: {words}"):
        formats.read(folder)


HEADERS = {
    "bytes of another": (lambda h: h["a"].__setitem__("data_offsets", [8, 16]), "the one before ends at"),
    "bytes of nobody": (lambda h: h["b"].__setitem__("data_offsets", [12, 16]), "the one before ends at"),
    "before the beginning": (lambda h: h["a"].__setitem__("data_offsets", [-8, 8]), "the one before ends at"),
    "beyond the end": (lambda h: h["b"].__setitem__("data_offsets", [8, 1 << 60]), "its header promises"),
    "an absurd shape": (lambda h: h["a"].__setitem__("shape", [1 << 40, 1 << 40]), "does not fit into its bytes"),
    "a negative shape": (lambda h: h["a"].__setitem__("shape", [-1, -2]), "does not fit into its bytes"),
    "a shape of words": (lambda h: h["a"].__setitem__("shape", "ab"), "does not fit into its bytes"),
    "no type": (lambda h: h["a"].pop("dtype"), "does not say what a is"),
    "a type that is a list": (lambda h: h["a"].__setitem__("dtype", []), "does not say what a is"),
    "no tensors but a list": (lambda h: h.__setitem__("a", [1]), "not a readable safetensors file"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_of_safetensors(tmp_path, name):
    """A safetensors header with overlapping, missing or impossible byte ranges, shapes or types is refused, with the
    file named."""
    edit, words = HEADERS[name]
    path = tmp_path / "f.safetensors"
    write_tensors(path, {"a": np.zeros(2, np.float32), "b": np.ones(2, np.float32)})
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    edit(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    with pytest.raises(ValueError, match=words) as error:
        TensorFile(path).tensor("a").read()
    assert str(path) in str(error.value)


def test_a_pickle_cannot_ask_for_memory():
    """A pickle that stores a value at memo index 2^31 is refused, where Python's would allocate so many places; one of
    2000 dictionaries is read."""
    for place in (1 << 31, (1 << 32) - 1):
        with pytest.raises(ValueError, match=r"it: not a readable pickle .*place"):
            read_pickle(b"\x80\x02}r" + place.to_bytes(4, "little") + b".", "it")
    values = [{"name": str(number)} for number in range(2000)]
    assert read_pickle(pickle.dumps(values, 2), "it") == values


def test_a_packed_archive_is_refused(tmp_path):
    """A torch.save archive whose entries are compressed (a thousand bytes that unpack to a million) is refused."""
    with zipfile.ZipFile(tmp_path / "f.pt", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", b"\x80\x02" + b"N0" * 500_000 + b"N.")
    with pytest.raises(ValueError, match=r"f\.pt: archive/data\.pkl is compressed"):
        read_archive(tmp_path / "f.pt")


def test_an_encrypted_archive_is_refused(tmp_path):
    """A torch.save archive whose entries are encrypted is refused by reading, and by checking its checksums."""
    path = tmp_path / "f.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"\x80\x02N.")
    content = bytearray(path.read_bytes())
    content[6] |= 1
    content[content.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"f\.pt: archive/data\.pkl is compressed or encrypted"):
        read_archive(path)
    assert "encrypted" in (damaged_entry(path, 0, len(content)) or "")


def test_a_damaged_compressed_entry_is_told_as_damage(tmp_path):
    """An archive whose compressed bytes are damaged is damage that is told, not an error of zlib."""
    path = tmp_path / "f.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(range(256)) * 40)
    content = bytearray(path.read_bytes())
    begin = content.index(b"archive/data.pkl") + len("archive/data.pkl")
    content[begin : begin + 8] = b"\xff" * 8
    path.write_bytes(content)
    assert damaged_entry(path, 0, len(content)) is not None


def test_an_archive_with_a_damaged_name_is_refused(tmp_path):
    """A torch.save archive in whose list a name that is said to be UTF-8 is none is an error that names the file."""
    path = tmp_path / "f.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/d\u00e4ta.pkl", b"\x80\x02N.")
    content = bytearray(path.read_bytes())
    listed = content.index(b"PK\1\2")
    content[content.index("\u00e4".encode(), listed)] = 0x91
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"f\.pt: not") as error:
        read_archive(path)
    assert not isinstance(error.value, UnicodeError)


def test_a_chunk_of_torch_dist_without_a_file(tmp_path):
    """A torch_dist `.metadata` that gives no file for a chunk is refused with the folder's name."""
    folder = unpack("torch_dist/mixtral_ep2", tmp_path)
    (metadata,) = folder.glob("iter_*/.metadata")
    metadata.write_bytes(metadata.read_bytes().replace(b"relative_path", b"relative_pat_"))
    with pytest.raises(ValueError, match=r"names no file, first byte and length of a chunk"):
        formats.read(folder)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_entry_that_is_there_twice(tmp_path):
    """An archive with one entry twice is refused, since readers disagree about which counts."""
    write_archive(tmp_path / "f.pt", {"w": of_array(np.zeros(2, np.float32))})
    with zipfile.ZipFile(tmp_path / "f.pt", "a") as file:
        file.writestr("archive/data/0", b"\1" * 8)
    with pytest.raises(ValueError, match=r"f\.pt: an entry is there twice"):
        read_archive(tmp_path / "f.pt")


def test_a_dictionary_within_itself_is_refused(tmp_path):
    """A pickle whose model dictionary contains itself is refused: a walk through it would never end."""
    folder = unpack("legacy/llama_tp2_bf16", tmp_path)
    (path,) = folder.glob("iter_*/mp_rank_00/model_optim_rng.pt")
    write_archive(path, {"checkpoint_version": 3.0, "args": {}, "model": {"w": of_array(np.zeros(2, np.float32))}})
    with zipfile.ZipFile(path) as file:
        entries = {name: file.read(name) for name in file.namelist()}
    endless = (
        b"\x80\x02}(X\x05\x00\x00\x00model}q\x01(X\x01\x00\x00\x00ah\x01uX\x12\x00\x00\x00checkpoint_versionK\x03u."
    )
    with zipfile.ZipFile(path, "w") as file:
        for name, data in (entries | {"archive/data.pkl": endless}).items():
            file.writestr(name, data)
    with pytest.raises(ValueError, match=str(folder)):
        formats.read(folder)


def test_dictionaries_that_share_others_are_refused(tmp_path):
    """A pickle with 40 levels of dictionaries that hold the next one twice is refused: a walk through it has 2^40
    steps."""
    folder, shared = unpack("legacy/llama_tp2_bf16", tmp_path), {}
    for _ in range(40):
        shared = {"a": shared, "b": shared}
    (path,) = folder.glob("iter_*/mp_rank_00/model_optim_rng.pt")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps({"checkpoint_version": 3.0, "args": {}, "model": shared}, 2))
    (folder / path.relative_to(folder).parent.with_name("mp_rank_01") / path.name).unlink()
    with pytest.raises(ValueError, match="is there twice"):
        formats.read(folder)


def test_a_pointer_that_is_no_text(tmp_path):
    """A latest_checkpointed_iteration.txt that is no text is an error with the folder's name."""
    folder = unpack("legacy/llama_tp2_bf16", tmp_path)
    (folder / formats.TRACKER).write_bytes(b"\xff\xfe1")
    with pytest.raises(ValueError, match=str(folder)):
        formats.read(folder)


def test_a_description_that_is_none(tmp_path):
    """A torch_dist `.metadata` that holds another object than the description of tensors is refused by reading and by
    checking alike, since the description says which files' checksums to compare."""
    folder = unpack("torch_dist/mixtral_ep2", tmp_path)
    (metadata,) = folder.glob("iter_*/.metadata")
    metadata.write_bytes(pickle.dumps([]))
    for act in (formats.read, lambda found: list(damages(formats.recognise(found)[1]))):
        with pytest.raises(ValueError, match=r"\.metadata: it holds no description"):
            act(folder)


def test_a_manifest_of_a_thousand_million_layers(tmp_path):
    """A manifest of our own format that claims 10^9 layers is refused by comparison with the number of parameters in
    its files."""
    folder = write_native(formats.read(unpack("hf/llama", tmp_path)), tmp_path / "ours")
    content = json.loads((folder / "manifest.json").read_text())
    del content["digest"]
    content["config"]["model_config"]["num_layers"] = 10**9
    (folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"num_layers 1000000000, its files \d+ parameters"):
        formats.read(folder)


def test_a_tensor_that_the_manifest_alone_has(tmp_path):
    """A tensor that a manifest of our own format says is in a file that lacks it is refused with the file and the
    tensor."""
    folder = write_native(formats.read(unpack("hf/llama", tmp_path)), tmp_path / "ours")
    content = json.loads((folder / "manifest.json").read_text())
    del content["digest"]
    content["tensors"]["decoder.other"] = content["tensors"].pop("decoder.final_layernorm.weight")
    (folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"\.safetensors: lacks decoder\.other"):
        read_native(folder)


def test_a_chunk_of_torch_dist_outside_of_the_folder(tmp_path):
    """A torch_dist `.metadata` that names a data file outside of the folder is refused, and that file is not opened."""
    folder = unpack("torch_dist/mixtral_ep2", tmp_path)
    (metadata,) = folder.glob("iter_*/.metadata")
    data = metadata.read_bytes()
    name = b"__0_0.distcp"
    assert name in data
    metadata.write_bytes(data.replace(name, b"../_0.distcp"))
    with opened() as files, pytest.raises(ValueError, match="does not lie in it"):
        formats.read(folder)
    assert all(file.is_relative_to(folder) for file in files if file.suffix not in (".py", ".pyc", ".so"))
