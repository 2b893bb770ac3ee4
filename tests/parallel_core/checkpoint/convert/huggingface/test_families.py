"""The recorded families as files: what is read is written bit by bit, and flags of other tools say the same network."""

import json
import re

import numpy as np
import pytest

from parallel_core.checkpoint.convert import formats
from parallel_core.checkpoint.convert.huggingface.config import with_vocabulary
from parallel_core.checkpoint.convert.huggingface.read import read_tensors
from parallel_core.checkpoint.convert.huggingface.write import write_huggingface
from parallel_core.checkpoint.networks import differences
from parallel_core.config import serialise
from tests.support.engine import config_of
from tests.support.family_cases import CASES, folder_of, recorded

UNUSED = {"longcat_flash": r"experts\.[678]\."}
"""Tensors that transformers makes room for and does not use: those of experts that do nothing, here zeros."""
_OF_LATENTS = "model_config.multi_latent_attention.latent_norm_epsilon"
UNSAID = {
    ("longcat_flash", "MindSpeed-LLM"): {_OF_LATENTS},
    ("glm_moe_dsa", "Megatron-LM"): {_OF_LATENTS},
    ("glm_moe_dsa", "MindSpeed-LLM"): {_OF_LATENTS, "model_config.sparse_attention.dsa_indexer_k_norm_epsilon"},
}
"""What only transformers has: its norms of latents have an epsilon of their own."""
FLAGS = [(case, tool) for case in CASES for tool in recorded(case)["flags"]]


@pytest.mark.parametrize("case", CASES)
def test_a_model_is_written_as_it_was_read(case, tmp_path):
    """Every tensor under its name, bit by bit; config.json says the same network, of the same type."""
    model = formats.read(folder_of(case), "hf")
    write_huggingface(model, tmp_path)
    theirs, ours = read_tensors(folder_of(case)), read_tensors(tmp_path)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        if re.search(UNUSED.get(case, "^$"), name):
            assert not np.any(ours[name].read())
            continue
        np.testing.assert_array_equal(ours[name].read(), tensor.read(), err_msg=name)
    said, written = (json.loads((each / "config.json").read_text()) for each in (folder_of(case), tmp_path))
    assert written["model_type"] == said["model_type"]
    again = formats.read(tmp_path, "hf")
    assert not differences(*(serialise.config_of(with_vocabulary(each.settings)) for each in (model, again)))


@pytest.mark.parametrize(("case", "tool"), FLAGS)
def test_flags_of_other_tools_say_the_same_network(case, tool):
    """As the record has them: none is refused, and no setting differs from those of the file."""
    said = serialise.config_of(with_vocabulary(formats.read(folder_of(case), "hf").settings))
    found = {difference.path for difference in differences(config_of(recorded(case)["flags"][tool], 1), said)}
    assert found == UNSAID.get((case, tool), set())
