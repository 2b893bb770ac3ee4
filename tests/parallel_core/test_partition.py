"""The assignment of layers to stages and chunks, and layouts that are refused."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parallel_core.config import AllConfig, ConfigError, DatasetConfig, ModelConfig, ParallelConfig
from parallel_core.partition import chunk_layers


def config(num_layers: int, stages: int, micro_batches: int | None = None, **parallel) -> AllConfig:
    """A config of `num_layers` over `stages`; without `micro_batches` there are as many as the schedule needs."""
    return AllConfig(
        model_config=ModelConfig(
            vocab_size=8, num_layers=num_layers, hidden_size=4, num_attention_heads=1, seq_length=4
        ),
        parallel_config=ParallelConfig(world_size=stages, pipeline_model_parallel_size=stages, **parallel),
        dataset_config=DatasetConfig(batch_size=1, global_batch_size=micro_batches),
    )


def counts(made: AllConfig) -> list[list[int]]:
    """The number of layers by [chunk][stage]."""
    return [[len(layers) for layers in row] for row in chunk_layers(made.model_config, made.parallel_config)]


VPP = "virtual_pipeline_model_parallel_size"
PER_CHUNK = "num_layers_per_virtual_pipeline_stage"
FIRST, LAST = "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"
EMBEDDING, LOSS = "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"
LIST, ALONE, OFFSET = "num_layer_list", "standalone_embedding_stage", "offset"
GROUP = "microbatch_group_size_per_virtual_pipeline_stage"


@pytest.mark.parametrize(
    ("layers", "stages", "parallel", "expected"),
    [
        # The remaining layers go to the last stage but one first.
        (10, 4, {}, [[2, 3, 3, 2]]),
        (11, 4, {}, [[3, 3, 3, 2]]),
        (3, 2, {}, [[2, 1]]),
        (5, 1, {}, [[5]]),
        (6, 2, {LIST: [2, 4]}, [[2, 4]]),
        # Virtual stages, asked for in each way.
        (8, 2, {VPP: 2}, [[2, 2], [2, 2]]),
        (8, 2, {PER_CHUNK: 1}, [[1, 1]] * 4),
        (8, 2, {PER_CHUNK: 2, VPP: 2}, [[2, 2], [2, 2]]),
        (8, 2, {VPP: 2, LIST: [2, 6]}, [[1, 3], [1, 3]]),
        (6, 2, {VPP: 2, LIST: [[1, 2], [2, 1]]}, [[1, 2], [2, 1]]),
        (6, 2, {LIST: [[1, 2], [2, 1]]}, [[1, 2], [2, 1]]),
        (8, 2, {PER_CHUNK: 4}, [[4, 4]]),
        # Beyond an even share, for each stage or for each chunk of it: the documented example is the last.
        (10, 4, {OFFSET: [0, 1, 1, 0]}, [[2, 3, 3, 2]]),
        (10, 2, {VPP: 2, OFFSET: [0, 1]}, [[2, 3], [2, 3]]),
        (
            48,
            5,
            {VPP: 2, OFFSET: [[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]]},
            [[4, 5, 5, 5, 5], [5, 5, 5, 5, 4]],
        ),
        # First and last stage of other sizes.
        (8, 4, {FIRST: 1, LAST: 3}, [[1, 2, 2, 3]]),
        (9, 3, {FIRST: 1}, [[1, 4, 4]]),
        (7, 3, {LAST: 1}, [[3, 3, 1]]),
        (5, 3, {FIRST: 0, LAST: 2}, [[0, 3, 2]]),
        (10, 3, {FIRST: 2, LAST: 4, VPP: 2}, [[1, 2, 2], [1, 2, 2]]),
        (6, 4, {ALONE: True}, [[0, 2, 2, 2]]),
        (7, 4, {ALONE: True}, [[0, 2, 3, 2]]),
        (8, 3, {ALONE: True, VPP: 2}, [[0, 2, 2], [0, 2, 2]]),
        (8, 3, {ALONE: True, PER_CHUNK: 1}, [[0, 1, 1]] * 4),
        (5, 3, {ALONE: True, LIST: [0, 2, 3]}, [[0, 2, 3]]),
        # The embedding, or the output layer, alone in its virtual stage.
        (2, 4, {LIST: [0, 1, 1, 0]}, [[0, 1, 1, 0]]),
        (6, 2, {LIST: [[0, 3], [3, 0]]}, [[0, 3], [3, 0]]),
        # Embedding and loss count as a layer.
        (6, 4, {EMBEDDING: True, LOSS: True}, [[1, 2, 2, 1]]),
        (14, 4, {EMBEDDING: True, LOSS: True, VPP: 2}, [[1, 2, 2, 2], [2, 2, 2, 1]]),
        (7, 2, {EMBEDDING: True, PER_CHUNK: 2}, [[1, 2], [2, 2]]),
        (4, 1, {EMBEDDING: True, LOSS: True}, [[4]]),
    ],
)
def test_how_layers_are_split(layers, stages, parallel, expected):
    """Layers by [chunk][stage] for Megatron's ways to divide them and MindFormers' uneven ones."""
    made = config(layers, stages, **parallel)
    assert counts(made) == expected
    assert (made.parallel_config.virtual_pipeline_model_parallel_size or 1) == len(expected)


def test_layers_are_numbered_chunk_after_chunk():
    """Layers are numbered through all stages of chunk 0, then of chunk 1, as a micro-batch meets them."""
    made = config(6, 2, num_layer_list=[[1, 2], [2, 1]])
    assert chunk_layers(made.model_config, made.parallel_config) == [
        [range(0, 1), range(1, 3)],
        [range(3, 5), range(5, 6)],
    ]


def test_layers_that_do_nothing_keep_their_numbers():
    """Layers of --noop-layers are counted when layers are divided, to even out the stages."""
    assert counts(config(8, 4, noop_layers=[0, 7])) == [[2, 2, 2, 2]]


BAD = [
    # (layers, stages, micro-batches, the rest of the layout, what the message must start with)
    (3, 4, 4, {}, "--pipeline-model-parallel-size 4"),
    (3, 5, 5, {ALONE: True}, "--pipeline-model-parallel-size 5"),
    (3, 1, 1, {ALONE: True}, "--standalone-embedding-stage"),
    (6, 2, 2, {LIST: [3, 4]}, "--num-layer-list [3, 4]: adds up to 7"),
    (6, 2, 2, {LIST: [6]}, "--num-layer-list [6]: needs 2 numbers"),
    (6, 2, 2, {LIST: []}, "--num-layer-list []"),
    (6, 3, 3, {LIST: [3, 0, 3]}, "--num-layer-list [3, 0, 3]: each number"),
    (6, 2, 2, {LIST: [6, 0], VPP: 2}, "--num-layer-list [6, 0]: each number"),
    (6, 2, 2, {LIST: [[3, 0], [0, 3]]}, "--num-layer-list [[3, 0], [0, 3]]: each number"),
    (6, 2, 2, {LIST: [7, -1]}, "--num-layer-list [7, -1]: each number"),
    (6, 2, 2, {LIST: [[3, 3], [0, 0]]}, "--num-layer-list [[3, 3], [0, 0]]: each number"),
    (6, 2, 2, {LIST: [3, "3"]}, "--num-layer-list [3, '3']: must be of type"),
    (6, 2, 2, {LIST: [True, 5]}, "--num-layer-list [True, 5]: must be of type"),
    (6, 2, 2, {LIST: [[3], 3]}, "--num-layer-list [[3], 3]: must be of type"),
    (6, 2, 2, {LIST: [[3, 2], [1]]}, "--num-layer-list [[3, 2], [1]]: needs 2 lists"),
    (6, 2, 2, {LIST: [[3, 1], [1, 1]], VPP: 3}, "--num-layer-list [[3, 1], [1, 1]]: needs 3 lists"),
    (6, 2, 2, {LIST: [3, 3], VPP: 2}, "--num-layer-list [3, 3]: each number must be a multiple of the 2 virtual"),
    (6, 2, 2, {LIST: [3, 3], ALONE: True}, "--num-layer-list [3, 3]: must give the first stage 0"),
    (7, 2, 2, {OFFSET: [0, 2]}, "--offset [0, 2]: adds up to 2, must add up to the 1 layers that 7 are beyond 2 x 3"),
    (7, 2, 2, {OFFSET: [1]}, "--offset [1]: must be a list of 2 stages' numbers"),
    (6, 2, 2, {OFFSET: [3, -3]}, "--offset [3, -3]: leaves a chunk without a layer"),
    (7, 2, 2, {OFFSET: "a"}, "--offset 'a': must be of type"),
    (7, 2, 2, {OFFSET: [[0, 1], 3]}, "--offset [[0, 1], 3]: must be of type"),
    (6, 2, 2, {OFFSET: [0, 0], LIST: [3, 3]}, "--offset [0, 0]: does not go with --num-layer-list"),
    (6, 2, 2, {LIST: [3, 3], FIRST: 3}, "--decoder-first-pipeline-num-layers 3: does not go with --num-layer-list"),
    (6, 2, 2, {LIST: [3, 3], LOSS: True}, "--account-for-loss-in-pipeline-split: does not go with"),
    (6, 2, 2, {EMBEDDING: True, LAST: 3}, "--decoder-last-pipeline-num-layers 3: does not go with"),
    (6, 3, 3, {EMBEDDING: True, ALONE: True}, "--standalone-embedding-stage: does not go with"),
    (6, 3, 3, {FIRST: 1}, "--decoder-first-pipeline-num-layers 1: leaves 5 layers for 2 stages"),
    (6, 3, 3, {FIRST: 3, LAST: 3}, "--decoder-first-pipeline-num-layers 3 --decoder-last-pipeline-num-layers 3"),
    (6, 1, 1, {FIRST: 3, LAST: 3}, "--decoder-first-pipeline-num-layers 3 --decoder-last-pipeline-num-layers 3"),
    (9, 3, 3, {FIRST: 3, VPP: 2}, "--virtual-pipeline-model-parallel-size 2"),
    (6, 2, 2, {VPP: 2}, "--virtual-pipeline-model-parallel-size 2: 2 virtual stages do not divide the 3 layers"),
    (6, 2, 2, {PER_CHUNK: 2}, "--num-layers-per-virtual-pipeline-stage 2: the rest of the layout makes"),
    (8, 2, 2, {PER_CHUNK: 2, VPP: 4}, "--num-layers-per-virtual-pipeline-stage 2: the rest of the layout makes"),
    (8, 1, 1, {VPP: 2}, "--virtual-pipeline-model-parallel-size 2: needs 2 or more stages"),
    (8, 2, 3, {VPP: 2}, "--global-batch-size 3 (micro-batches: 3): must be a multiple of --pipeline-model-parallel-"),
    (8, 2, 4, {VPP: 2, GROUP: 1}, "--microbatch-group-size-per-virtual-pipeline-stage 1: must be at least"),
    (8, 2, 4, {VPP: 2, GROUP: 5}, "--microbatch-group-size-per-virtual-pipeline-stage 5: must be at least"),
    (8, 2, 4, {VPP: 2, GROUP: 3}, "--microbatch-group-size-per-virtual-pipeline-stage 3: leaves a last group of 1"),
    (8, 2, 4, {GROUP: 2}, "--microbatch-group-size-per-virtual-pipeline-stage 2: needs virtual stages"),
    (8, 2, 4, {"pipeline_schedule": "interleaved"}, "--pipeline-schedule interleaved: needs 2 or more virtual"),
    *(
        (
            8,
            2,
            4,
            {"pipeline_schedule": name, VPP: 2},
            "--virtual-pipeline-model-parallel-size 2: needs the interleaved",
        )
        for name in ("gpipe", "1f1b", "zb-h1")
    ),
    (
        6,
        2,
        4,
        {"pipeline_schedule": "dualpipev"},
        "--pipeline-schedule dualpipev: 2 virtual stages do not divide the 3",
    ),
    (8, 4, 6, {"pipeline_schedule": "dualpipev"}, "--global-batch-size 6 (micro-batches: 6): must be at least 7 with"),
    (6, 2, 2, {"noop_layers": [6]}, "--noop-layers 6"),
]


@pytest.mark.parametrize(("layers", "stages", "micro_batches", "parallel", "message"), BAD)
def test_bad_layouts_are_refused(layers, stages, micro_batches, parallel, message):
    """An impossible layout is an error that begins with flag and value."""
    with pytest.raises(ConfigError, match="(?m)^" + re.escape(message)):
        config(layers, stages, micro_batches, **parallel)


def test_interleaving_makes_its_own_number_of_micro_batches():
    """Interleaving has one whole group of micro-batches if no batch size is given."""
    assert config(8, 2, virtual_pipeline_model_parallel_size=2).dataset_config.micro_batch_num == 2
    assert config(8, 2, **{VPP: 2, GROUP: 3}).dataset_config.micro_batch_num == 3


LAYOUTS = {
    VPP: st.integers(1, 4),
    PER_CHUNK: st.integers(1, 4),
    FIRST: st.integers(0, 4),
    LAST: st.integers(0, 4),
    LIST: st.lists(st.integers(-1, 4), max_size=5) | st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=3),
    EMBEDDING: st.booleans(),
    LOSS: st.booleans(),
    ALONE: st.booleans(),
    GROUP: st.integers(1, 9),
    "pipeline_schedule": st.sampled_from(["gpipe", "1f1b", "interleaved", "zb-h1"]),
}


A_FEW = st.lists(st.sampled_from(sorted(LAYOUTS)), max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: LAYOUTS[name] for name in names})
)


@example(3, 4, 1, {LIST: [0, 1, 1, 1]})
@settings(max_examples=300)
@given(st.integers(1, 24), st.integers(1, 5), st.integers(1, 12), A_FEW)
def test_every_layout_is_refused_or_owns_each_layer_once(layers, stages, micro_batches, parallel):
    """Drawn layouts are refused, or have each layer once in order; only a first or last stage may be without layers, if
    the user said so."""
    try:
        made = config(layers, stages, micro_batches, **parallel)
    except ConfigError:
        return
    owned = chunk_layers(made.model_config, made.parallel_config)
    assert len(owned) == (made.parallel_config.virtual_pipeline_model_parallel_size or 1)
    assert all(len(row) == stages for row in owned)
    in_order = [layers for row in owned for layers in row]
    assert [number for layers in in_order for number in layers] == list(range(layers))
    for number, own in enumerate(in_order):
        listed = bool(parallel.get(LIST))
        first = number % stages == 0 and (listed or parallel.get(ALONE) or parallel.get(FIRST) == 0)
        first = first or (number == 0 and parallel.get(EMBEDDING))
        last = number % stages == stages - 1 and (listed or parallel.get(LAST) == 0)
        last = last or (number == len(in_order) - 1 and parallel.get(LOSS))
        assert len(own) > 0 or first or last, (number, in_order)
