"""--pipeline-model-parallel-layout: Megatron's notation, and the numbers of layers by chunk and stage that it
becomes."""

import pytest

from mapping.arguments import init_configs_from_dict
from mapping.flags.notations import layers_of_stages, literal, pipeline_layout
from parallel_core.config import ConfigError
from parallel_core.partition import chunk_layers
from parallel_core.schedules.generators import FOLDED
from tests.support.mapping.lines import reading
from tests.support.mapping.yaml_files import MEGATRON

LAYOUTS = [
    # (layout, stages of the pipeline, layers of each)
    ("Et*3|(tt|)*6L", 2, [[3, 2], [2, 2], [2, 2], [2, 0]]),
    ("Et*2|(tt|)*5t|tmL", 4, [[2, 2, 2, 2], [2, 2, 1, 1]]),
    ("Et*7|t*7mL", 2, [7, 7]),
    ("E|tt|tt|L", 4, [0, 2, 2, 0]),
    ("Ettt|(tt|)*29,m|L", 4, [[3, 2, 2, 2], *[[2] * 4] * 6, [2, 2, 0, 0]]),
    ("E(t|(tt|)*2)*2tL", 7, [1, 2, 2, 1, 2, 2, 1]),
    ("Et|*3tL", 4, [1, 0, 0, 1]),
    ("EttL", 1, [2]),
    ("[['embedding', 'decoder'], ['decoder', 'decoder'], ['mtp', 'loss']]", 3, [1, 2, 0]),
]


@pytest.mark.parametrize(("layout", "size", "layers"), LAYOUTS)
def test_a_layout_is_layers_by_chunk_and_stage(layout, size, layers):
    """A layout with repetitions (of stages and within them), commas and words gives the numbers of decoder layers by
    [chunk][stage]."""
    assert layers_of_stages(pipeline_layout(layout), size, folded=False) == layers


def test_a_layout_says_the_virtual_stages():
    """The number of stages in a layout gives the number of virtual stages."""
    found = reading("--pipeline-model-parallel-layout Et|tt|t|L --pipeline-model-parallel-size 2", 2)
    assert found.errors == []
    parallel = found.config.parallel_config
    assert (parallel.num_layer_list, parallel.virtual_pipeline_model_parallel_size) == ([[1, 2], [1, 0]], 2)


@pytest.mark.parametrize("name", sorted(FOLDED))
def test_a_folded_schedule_goes_back_through_the_stages(name):
    """With a folded schedule the layout's third of four stages is the last stage's second chunk, its fourth the
    first's: stages get the layers that the layout names in the order of a micro-batch's visits."""
    flags = "--pipeline-model-parallel-size 2 --untie-embeddings-and-output-weights --num-layers 5"
    flags += f" --pipeline-model-parallel-layout Et|t|ttt|L --pipeline-schedule {name}"
    found = reading(flags, 2)
    assert found.errors == []
    config = found.config
    assert config.parallel_config.num_layer_list == [[1, 1], [0, 3]]
    assert chunk_layers(config.model_config, config.parallel_config) == [
        [range(0, 1), range(1, 2)],
        [range(5, 5), range(2, 5)],
    ]


def test_a_folded_schedule_has_no_empty_stage_where_it_turns():
    """With a folded schedule only the first stage's chunks, which have the embedding and the output layer, may be
    without layers."""
    flags = "--pipeline-model-parallel-size 2 --untie-embeddings-and-output-weights --pipeline-schedule zb-v"
    assert reading(f"{flags} --num-layer-list [[0,2],[0,2]]", 2).errors == []
    (error,) = reading(f"{flags} --num-layer-list [[1,1],[2,0]]", 2).errors
    assert "save that beside the embedding and that beside the output layer" in error


LISTS = [["embedding", "decoder"], ["decoder", "decoder"], ["decoder"], ["loss"]]


def test_a_file_may_give_lists_of_words():
    """A file may give the layout as lists of words, as Megatron's configs hold it; another word is an error with the
    key."""
    content = MEGATRON | {"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": LISTS}
    assert init_configs_from_dict(content).parallel_config.num_layer_list == [[1, 2], [1, 0]]
    with pytest.raises(ConfigError, match=r"pipeline_model_parallel_layout .*must be stages"):
        init_configs_from_dict(content | {"pipeline_model_parallel_layout": [["encoder"], *LISTS[1:]]})


@pytest.mark.parametrize("text", ["-" * 100_000 + "1", "not " * 3000 + "1", "x", "["])
def test_text_that_is_no_literal(text):
    """Text that is no Python literal, or is nested too deeply to be read, is a ValueError."""
    with pytest.raises(ValueError):
        literal(text)
