"""`convert --logits`: logits of the written checkpoint are compared with those of the source."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from parallel_core.checkpoint.convert import formats, logits
from parallel_core.checkpoint.convert.__main__ import convert, parser
from parallel_core.checkpoint.convert.native import write_native
from tests.support.checkpoint_cases import unpack

LLAMA = "hf/llama"


def engine_that_gives(monkeypatch, *arrays: np.ndarray) -> None:
    """Replace the engine's process by one that returns these logits, one array for each folder."""
    monkeypatch.setattr(
        logits, "_computed", lambda prompt, seconds, *folders: [np.array(array)[None, None] for array in arrays]
    )


@pytest.mark.parametrize("other", [[1.0, 2.001], [1.0, np.nan]])
def test_other_numbers_and_none_are_refused(other, monkeypatch, tmp_path):
    """Logits that differ, or are NaN, are an error that names the checkpoint that they are compared with."""
    engine_that_gives(monkeypatch, [1.0, 2.0], other)
    model = formats.read(unpack(LLAMA, tmp_path))
    with pytest.raises(ValueError, match=r"logits of a small prompt differ from those of .*one"):
        logits.difference(model, tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize(
    ("dtype", "other", "fits"), [("bfloat16", 2.02, True), ("bfloat16", 2.5, False), ("float32", 2.02, False)]
)
def test_merging_adapters_rounds_weights_of_16_bits(dtype, other, fits, monkeypatch, tmp_path):
    """A difference of rounding is accepted where adapters were merged into bfloat16 weights, a larger one is not, and
    none for float32: the engine adds the source's adapters to the products in float32."""
    engine_that_gives(monkeypatch, [1.0, 2.0], [1.0, other])
    model = formats.read(unpack(LLAMA, tmp_path))
    model.weights = {name: replace(tensor, dtype=dtype) for name, tensor in model.weights.items()}
    model.adapters = 2
    if fits:
        assert logits.difference(model, tmp_path, tmp_path) == pytest.approx(0.01)
    else:
        with pytest.raises(ValueError, match="logits of a small prompt differ"):
            logits.difference(model, tmp_path, tmp_path)


def test_ids_that_only_pad_are_not_compared(monkeypatch, tmp_path):
    """Logits of ids that pad the vocabulary are not compared; a target may have more of them."""
    model = formats.read(unpack(LLAMA, tmp_path))
    ids = np.ones(model.unpadded_vocab_size)
    engine_that_gives(monkeypatch, ids, np.append(ids, 7.0))
    assert logits.difference(model, tmp_path, tmp_path) == 0.0


def test_large_models_are_skipped_with_a_reason(tmp_path):
    """A model of 4 GiB is not computed unless --logits yes asks for it, and the reason says its size."""
    tensor = SimpleNamespace(shape=(1 << 15, 1 << 15))
    model = formats.read(unpack(LLAMA, tmp_path))
    model.weights = {"embedding.word_embeddings.weight": tensor}
    assert "4.0 GiB" in logits.skipped(model) and "--logits yes" in logits.skipped(model)


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["auto", "yes"])
def test_an_engine_that_takes_too_long_is_stopped(asked, monkeypatch, tmp_path):
    """An engine that exceeds its time is stopped: with --logits auto the checkpoint is written and the line says that
    it was not compared, with yes the command fails and writes nothing."""
    monkeypatch.setattr(logits, "SECONDS", 0)
    monkeypatch.setattr(logits, "SECONDS_OF_GIB", 0)
    arguments = ["--input", unpack(LLAMA, tmp_path), "--output", tmp_path / "ours", "--logits", asked]
    options = parser().parse_args(list(map(str, arguments)))
    if asked == "yes":
        with pytest.raises(ValueError, match="not done after 0 s; --logits no leaves them out"):
            convert(options)
    else:
        assert "logits of a small prompt: not compared, the engine was not done after 0 s" in convert(options)
    assert (tmp_path / "ours").exists() == (asked == "auto")


@pytest.mark.slow
def test_a_setting_that_changes_the_network_shows(tmp_path):
    """The real engine finds that a target with the same weights and another rotary base gives other logits."""
    source = unpack(LLAMA, tmp_path)
    model = formats.read(source)
    model.network["rotary_base"] = 500
    target = write_native(model, tmp_path / "ours")
    with pytest.raises(ValueError, match="logits of a small prompt differ"):
        logits.difference(model, source, target)
