"""HuggingFace weights in float8 with one factor for each block (quant_method fp8): read as bfloat16 products."""

import json

import numpy as np
import pytest

from parallel_core.checkpoint.convert import formats
from parallel_core.checkpoint.convert.huggingface.quantised import block_of, dequantised
from parallel_core.checkpoint.lazy import FLOAT8, LazyTensor, from_bfloat16, of_array
from parallel_core.checkpoint.tensor_file import TensorFile
from tests.support.checkpoint_cases import unpack

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [2, 3]}


def float8(bits: np.ndarray) -> LazyTensor:
    """A float8 e4m3 tensor with these bytes."""
    return LazyTensor(bits.shape, FLOAT8, lambda: bits)


def test_all_patterns_of_bits():
    """All 256 bytes of e4m3 are read as the format's numbers: smallest 2^-9, largest 448, NaN at 0x7F and 0xFF,
    negative ones in the upper half."""
    bits = np.arange(256, dtype=np.uint8)[None]
    tensors = {"w": float8(bits), "w_scale_inv": of_array(np.ones((1, 1), np.float32))}
    values = from_bfloat16(dequantised(tensors, (1, 256))["w"].read())[0]
    assert values[[0x00, 0x01, 0x07, 0x08, 0x38, 0x7E]].tolist() == [0, 2**-9, 7 * 2**-9, 2**-6, 1, 448]
    assert np.array_equal(np.flatnonzero(np.isnan(values)), [0x7F, 0xFF])
    assert np.array_equal(values[128:255], -values[:127])
    assert np.all(np.diff(values[:127]) > 0)


def test_each_block_has_its_factor_and_the_last_ones_are_cut_off():
    """A [3, 4] weight in blocks of 2 x 3, of which the last are cut off: each element is multiplied by its block's
    factor and rounded to bfloat16, halves to even."""
    ones = np.full((3, 4), 0x38, np.uint8)
    factors = np.array([[1.0, 2.0], [1 + 2.0**-8, 1 + 3 * 2.0**-8]], np.float32)
    found = dequantised({"w": float8(ones), "w_scale_inv": of_array(factors)}, (2, 3))
    assert list(found) == ["w"] and found["w"].dtype == "bfloat16"
    row = [1.0, 1.0, 1.0]
    assert from_bfloat16(found["w"].read()).tolist() == [[*row, 2.0]] * 2 + [[*row, 1 + 2.0**-6]]


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"w": float8(np.zeros((3, 4), np.uint8))}, "w: is float8_e4m3, and has no factors w_scale_inv"),
        ({"w_scale_inv": of_array(np.ones((2, 2), np.float32))}, "w: is missing"),
        (
            {"w": float8(np.zeros((3, 4), np.uint8)), "w_scale_inv": of_array(np.ones((2, 1), np.float32))},
            r"blocks of 2 x 3 want .* \[2, 2\]",
        ),
        (
            {"w": of_array(np.ones((3, 4))), "w_scale_inv": of_array(np.ones((2, 2), np.float32))},
            "float64 with factors",
        ),
    ],
)
def test_what_does_not_fit_is_named(tensors, words):
    """A float8 weight without factors, factors without a weight, of another shape than the blocks, or beside a weight
    of another type are refused with the tensor's name."""
    with pytest.raises(ValueError, match=words):
        dequantised(tensors, (2, 3))


def test_other_ways_are_refused():
    """Another quantization_config than e4m3 in blocks (GPTQ, no block size, e5m2) is refused, with saving in bfloat16
    as the fix."""
    assert block_of({"quantization_config": FP8}) == (2, 3)
    for other in ({"quant_method": "gptq", "bits": 4}, {**FP8, "weight_block_size": None}, {**FP8, "fmt": "e5m2"}):
        with pytest.raises(ValueError, match=r"config\.json: quantization_config .*save the model in bfloat16"):
            block_of({"quantization_config": other})


def test_a_folder_with_such_weights(tmp_path):
    """A whole folder with one float8 weight: that one is read as its bfloat16 product, and the others are unchanged."""
    folder = unpack("hf/llama", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": FP8}))
    file = TensorFile(folder / "model.safetensors")
    arrays = {name: (file.array(name).copy(), "F32") for name in file.names}
    name, one = "model.layers.0.mlp.down_proj.weight", np.uint8(0x38)
    shape = arrays[name][0].shape
    blocks = -(-shape[0] // 2), -(-shape[1] // 3)
    arrays |= {name: (np.full(shape, one), "F8_E4M3"), f"{name}_scale_inv": (np.full(blocks, 0.5, np.float32), "F32")}
    header, begin = {}, 0
    for key, (array, kind) in arrays.items():
        header[key] = {"dtype": kind, "shape": array.shape, "data_offsets": [begin, begin + array.nbytes]}
        begin += array.nbytes
    text = json.dumps(header).encode()
    data = b"".join(array.tobytes() for array, _ in arrays.values())
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    weights = formats.read(folder).weights
    found = weights["decoder.layers.0.mlp.linear_fc2.weight"]
    assert found.dtype == "bfloat16" and np.all(found.widened() == 0.5)
    assert np.array_equal(
        weights["decoder.layers.1.mlp.linear_fc2.weight"].read(), arrays[name.replace("0", "1", 1)][0]
    )
