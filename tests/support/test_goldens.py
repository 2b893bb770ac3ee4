"""The small file that is stored in place of the recorded training cases' initial weights (tests.support.goldens)."""

import json

import numpy as np
import pytest

from tests.support import goldens
from tests.support.assets import ROOT


@pytest.fixture
def case(tmp_path):
    """A case of matrices that a generator of seed 77 drew at two scales, one of them rounded, and a norm."""
    (tmp_path / "config.json").write_text(
        json.dumps({"resolved_args": {"seed": 77, "init_method_std": 0.05, "num_layers": 8}})
    )
    drawn = goldens.normals(77, 9216)
    first, last = np.float32(0.05), np.float32(0.0125)
    matrix = (drawn[1024:5120].astype(np.float32) * first).reshape(64, 64)
    rounded = ((drawn[5120:9216] * last).astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    norm = np.linspace(0.9, 1.1, 64, dtype=np.float32)
    np.savez_compressed(tmp_path / goldens.WHOLE, matrix=matrix, rounded=rounded, norm=norm)
    return tmp_path


def test_stored_weights_come_back_to_the_bit_and_are_small(case):
    """`store` and `whole` give the weights back to the bit, drawn ones in a fifth of their bytes; others are stored
    whole."""
    before = dict(np.load(case / goldens.WHOLE))
    goldens.store(case)
    after = goldens.whole(case)
    assert {name: array.tobytes() for name, array in after.items()} == {n: a.tobytes() for n, a in before.items()}
    assert (case / goldens.STORED).stat().st_size < (before["matrix"].nbytes + before["rounded"].nbytes) / 5
    assert not (case / goldens.WHOLE).exists()


def test_a_case_is_unpacked_beside_what_it_has(case, tmp_path_factory):
    """`unpack` of a stored case gives a folder with the configuration and all initial weights."""
    goldens.store(case)
    found = goldens.unpack(case, tmp_path_factory.mktemp("unpacked") / "case")
    assert sorted(np.load(found / goldens.WHOLE).files) == ["matrix", "norm", "rounded"]
    assert json.loads((found / "config.json").read_text())["resolved_args"]["seed"] == 77


def test_assets_stay_small():
    """tests/assets, which every clone has, is at most 22 MB."""
    assert sum(file.stat().st_size for file in (ROOT / "tests" / "assets").rglob("*")) < 22e6
