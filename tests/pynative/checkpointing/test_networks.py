"""`differences` between two networks against the logits that models compute.

`differences` is trusted wherever a checkpoint is loaded or converted. So every option of the model and its experts is
changed here, with weights that stay: where no difference is told and parameters have the same shapes, logits are the
same; and an option of the network can change them.
"""

from copy import deepcopy
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pytest

from parallel_core.blocks import model_chunks
from parallel_core.checkpoint.networks import differences
from parallel_core.config import AllConfig, ConfigError
from parallel_core.config.serialise import config_of as whole_config
from parallel_core.config.serialise import get, model_of, put
from parallel_core.config.tree import OF_MODEL, OF_NETWORK, OPTIONS, PUBLIC
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.families import BESIDE

EXPERTS = "--num-experts 8 --moe-ffn-hidden-size 16 --moe-layer-freq [0,1] --moe-router-topk"
LONG = "--position-embedding-type rope --rope-scaling-type longrope --long-factor 4,3,2,1 --short-factor 4,2,1,1"
BASES = {
    "gpt": f"{EXPERTS} 2 --moe-router-load-balancing-type sparsemixer_topk",
    "llama": "--position-embedding-type rope --rope-scaling-type llama3 --low-freq-factor 0.5 --swiglu "
    "--rope-scaling-original-max-position-embeddings 64 --normalization RMSNorm --qk-layernorm --window-size 5,0 "
    "--window-attn-skip-freq 2 --pre-tockens 6 --use-sandwich-norm --add-qkv-bias --disable-bias-linear "
    "--num-query-groups 2 --group-query-attention --attn-logit-softcapping 0.4 --output-logit-softcapping 5",
    "deepseek": f"{EXPERTS} 2 --multi-latent-attention --kv-lora-rank 12 --qk-head-dim 6 --qk-pos-emb-head-dim 8 "
    "--v-head-dim 5 --qk-layernorm --rotary-scaling-factor 4 --mscale 0.5 --mscale-all-dim 0.7 --beta-fast 4 "
    "--moe-router-score-function sigmoid --moe-router-enable-expert-bias --moe-router-num-groups 2 "
    "--moe-router-group-topk 1 --moe-router-topk-scaling-factor 2.5 --moe-shared-expert-intermediate-size 16 "
    "--rope-scaling-original-max-position-embeddings 640 --norm-epsilon 1e-2 --max-position-embeddings 640",
    "sparse": "--multi-latent-attention --q-lora-rank 20 --kv-lora-rank 12 --qk-head-dim 6 --qk-pos-emb-head-dim 4 "
    "--v-head-dim 8 --qk-layernorm --rope-type rope --experimental-attention-variant dsa --dsa-indexer-n-heads 4 "
    "--dsa-indexer-head-dim 8 --dsa-indexer-topk 5 --dsa-indexer-loss-coeff 0.5 --mtp-num-layers 1 "
    "--position-embedding-type rope --normalization RMSNorm",
    "shared choices": "--num-layers 4 --multi-latent-attention --q-lora-rank 20 --kv-lora-rank 12 --qk-head-dim 6 "
    "--qk-pos-emb-head-dim 4 --v-head-dim 8 --qk-layernorm --rope-type rope --experimental-attention-variant dsa "
    "--dsa-indexer-n-heads 4 --dsa-indexer-head-dim 8 --dsa-indexer-topk 5 --mtp-num-layers 2 "
    "--dsa-indexer-k-norm-epsilon 1e-2 --index-topk-freq 2 --dsa-indexer-loss-coeff 0.5 "
    "--position-embedding-type rope --normalization RMSNorm",
    "compressed": "--multi-latent-attention --q-lora-rank 12 --kv-lora-rank 8 --qk-head-dim 8 --qk-pos-emb-head-dim 4 "
    "--qk-layernorm --compress-ratios 4 4 --sliding-window-size 5 --o-groups 2 --o-lora-rank 6 --original-seq-len 8 "
    "--enable-dsa-indexer --index-n-heads 4 --index-head-dim 8 --index-topk 2 --position-embedding-type deepseek4 "
    "--normalization RMSNorm --swiglu --disable-bias-linear --hidden-dropout 0 --enable-mhc --hc-mult 2 "
    "--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 16 --moe-router-score-function sqrtsoftplus "
    "--moe-router-load-balancing-type none --n-hash-layers 1 --untie-embeddings-and-output-weights",
    "lightning attention": "--experimental-attention-variant lightning_attention --linear-attention-freq 2 "
    "--apply-residual-connection-post-layernorm --linear-attention-residual-weights 1.5 0.7 "
    "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear",
    "beyond the original length": f"{EXPERTS} 3 {LONG} --rope-scaling-original-max-position-embeddings 8 "
    "--moe-router-pre-softmax --moe-shared-expert-intermediate-size 16 --moe-shared-expert-gate",
    "longcat": "--num-experts 4 --moe-ffn-hidden-size 16 --moe-shortcut-connected",
    "delta nets": "--experimental-attention-variant gated_delta_net --linear-attention-freq 2 --linear-num-key-heads 2 "
    "--linear-num-value-heads 4 --linear-key-head-dim 8 --linear-value-head-dim 8 --attention-output-gate "
    "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear",
    "side by side": f"{BESIDE} HH",
    "state spaces": "--num-layers 4 --hybrid-override-pattern M-*M --mamba-num-heads 4 --mamba-head-dim 8 "
    "--mamba-state-dim 6 --mamba-num-groups 2 --position-embedding-type none --normalization RMSNorm",
    "within it": f"{EXPERTS} 3 {LONG} --moe-router-load-balancing-type sinkhorn",
}
"""Name -> flags of a base network; each option of the network acts in at least one of them."""

OTHERS: dict[str, list] = {
    "num_query_groups": [1], "max_position_embeddings": [1280, 32], "latent_norm_epsilon": [0.5], "norm_epsilon": [0.5],
    "rotary_base": [50.0], "rotary_percent": [0.5], "rotary_seq_len_interpolation_factor": [2.0],
    "original_max_position_embeddings": [4, 32], "low_freq_factor": [0.1], "high_freq_factor": [1.5],
    "beta_fast": [0.6], "beta_slow": [0.1], "sliding_window.size": [3], "skip_freq": [None, [0, 1]],
    "long_factor": [[1.0, 3.0, 2.0, 5.0]], "short_factor": [[2.0] * 4], "long_mscale": [2.0], "short_mscale": [2.0],
    "pre_tokens": [3], "sparse_mode": [2], "next_tokens": [1], "moe_layer_freq": [2, [1, 0]],
    "moe_router_load_balancing_type": ["none", "sinkhorn", "sparsemixer_topk"], "moe_input_jitter_eps": [0.5],
    "moe_router_topk": [2, 1], "moe_router_topk_scaling_factor": [2.0], "moe_router_num_groups": [4],
    "moe_router_group_topk": [2], "moe_router_group_score_topk": [2, 1], "num_experts": [None, 16],
    "moe_ffn_hidden_size": [24], "moe_shared_expert_intermediate_size": [None, 24], "q_lora_rank": [24],
    "attention_cap": [0.2], "logit_cap": [2.0], "scales.attention": [0.1], "dsa_indexer_topk": [2], "seq_length": [8],
    "moe_aux_loss_coeff": [0.1], "moe_z_loss_coeff": [0.1], "moe_expert_capacity_factor": [8.0], "hot_expert_num": [2],
    "moe_drop_rate_capacity_factor": [2.0], "cold_token_percent": [0.5], "summary_dir": ["x"],
    "attn_post_norm_scale": [0.5], "ffn_post_norm_scale": [0.5], "activation_func_clamp_value": [0.1],
    "glu_linear_offset": [0.5], "num_zero_experts": [3], "local_rotary_base": [100.0],
    "index_topk_pattern": ["FFSS"], "dsa_indexer_skip_topk_offset": [2], "dsa_indexer_k_norm_epsilon": [0.5],
    "hash_layers": [2], "attention_residual": [[0.5, 2.0]], "mlp_residual": [[0.5, 2.0]], "ratios": [[4, 128], [4, 0]],
    "linear_attention_residual": [[0.5, 2.0]], "compressed_attention.window": [3], "output_groups": [1],
    "entry_rotary_base": [50.0], "original_length": [65536], "streams": [3], "hyper_connections.epsilon": [0.5],
    "iterations": [1],
    "linear_attention_freq": [[1, 0], [0, 1]], "layer_pattern": ["M*-M", "H*"],
    "mamba_multipliers": [[0.5, 1.0, 1.0, 1.0, 1.0]], "side_by_side_weights": [[1.0, 2.0]],
    "cla_share_factor": [2], "fp8_margin": [1],
}  # fmt: skip
"""Last part(s) of an option's path -> values to try. An option that is not here takes each other choice, the other
truth value, twice an integer, or 1.5 of a number."""

OF_TRAINING = {
    **dict.fromkeys(("params_dtype", "compute_dtype", "embedding_init_dtype"), "rounds"),
    **dict.fromkeys(("fp32_residual_connection", "moe_router_dtype", "fp16_lm_cross_entropy"), "rounds"),
    "fp8_simulate": "rounds",
    "moe_router_force_load_balancing": "routes at random, to measure speed",
}
"""Options that change a run's logits but not the network -> the reason why a checkpoint does not compare them."""
OF_THE_TOKENIZER = {"unpadded_vocab_size"}
"""Options of ids, which a checkpoint's reader compares itself."""


def others(path: str, value: Any) -> list:
    """The values to try for an option in place of `value` (OTHERS)."""
    option, name = OPTIONS[path], next((end for end in OTHERS if path.endswith(f".{end}")), None)
    if name is not None:
        found = OTHERS[name]
    elif option.field.metadata["choices"]:
        found = [*option.field.metadata["choices"], *([None] if option.default is None else [])]
    elif isinstance(value, bool):
        found = [not value]
    else:
        found = [2 * value if isinstance(value, int) else 1.5 * value or 0.5] if value is not None else []
    return [one for one in found if one != value]


def shapes(config: AllConfig) -> dict[str, tuple[int, ...]]:
    """Parameter name -> shape, of the whole model."""
    chunks = model_chunks(config.model_config)
    return {name: spec.shard.shape for chunk in chunks for name, spec in chunk.parameters().items()}


class Changed(NamedTuple):
    """A base network, and the same with options changed one way or another."""

    base: AllConfig
    silently: AllConfig
    """The base with all changes at once of which `differences` tells nothing and which leave all shapes."""
    paths: set[str]
    """Paths of the options changed in `silently`."""
    told: dict[str, AllConfig]
    """Path of each other option -> the base with its first other value, which is told or changes shapes."""


def changed(name: str, skipped: set[str]) -> Changed:
    """Change each option of the base of that name but `skipped`, which are options of a run that were changed in
    another base."""
    settings = model_of(config_of(f"{TINY} {BASES[name]}", 1).to_dict())
    base, silent = whole_config(settings), deepcopy(settings)
    of_base, found = shapes(base), Changed(base, base, set(), {})
    for path in OF_MODEL:
        if path.rpartition(".")[2] in OF_TRAINING or path in skipped:
            continue
        for value in others(path, get(settings, PUBLIC[path])):
            for start in (silent, settings):
                tried = deepcopy(start)
                put(tried, PUBLIC[path], value)
                try:
                    config = whole_config(tried)
                except ConfigError:
                    continue
                if not differences(base, config) and shapes(config) == of_base:
                    silent, found = tried, found._replace(silently=config, paths=found.paths | {path})
                else:
                    found.told.setdefault(path, config)
                break
    return found


@pytest.fixture(scope="module")
def bases() -> list[Changed]:
    """`Changed` of every name in BASES."""
    made: list[Changed] = []
    for name in BASES:
        paths = set().union(*(one.paths for one in made)) - set(OF_NETWORK)
        made.append(changed(name, paths))
    return made


def logits(backend, networks: list[dict]) -> list[np.ndarray]:
    """Logits [b, s, vocabulary] of one text by each network, with weights that are a function of the
    parameter's name."""
    import mindspore as ms

    from pynative.parameter import whole_parameters, write_parameter
    from pynative.transformer.gpt_model import GPTModel

    ids = (np.arange(96, dtype=np.int32) * 7 % 60).reshape(6, 16)
    positions = np.broadcast_to(np.arange(16, dtype=np.int32), ids.shape)
    found = []
    for settings in networks:
        config = whole_config(settings)
        with job(backend, config):
            model = GPTModel(config.model_config, parallel_output=False)
            for parameter in whole_parameters(model):
                name = parameter.meta.spec.name
                numbers = np.random.default_rng(crc32(name.encode()))
                values = numbers.normal(name.endswith("norm.weight"), 0.3, parameter.shape)
                write_parameter(parameter, values.astype(np.float32))
            model.set_train(False)
            found.append(model(ms.Tensor(ids), ms.Tensor(positions), None).astype(ms.float32).asnumpy())
    return found


def computed(configs: list[AllConfig]) -> list[np.ndarray]:
    """The `logits` of configurations, by one rank."""
    return run(1, logits, [model_of(config.to_dict()) for config in configs])[0]


def test_every_option_is_changed(bases):
    """Each option of the model is changed in some base, or stands in OF_TRAINING or OF_THE_TOKENIZER: a new option has
    to be thought of here."""
    paths = set().union(*(one.paths | one.told.keys() for one in bases))
    assert {path.rpartition(".")[2] for path in OF_MODEL if path not in paths} == OF_THE_TOKENIZER | OF_TRAINING.keys()


def test_what_is_not_told_changes_no_logits(bases):
    """Settings that are not compared change no logits: otherwise another network would be loaded silently."""
    before, after = computed([one.base for one in bases]), computed([one.silently for one in bases])
    for one, is_now, was in zip(bases, after, before, strict=True):
        assert np.abs(is_now - was).max() < 1e-5 * np.abs(was).max(), sorted(one.paths)


def test_what_is_told_changes_shapes_or_logits(bases):
    """Each option of which `differences` tells changes shapes or logits in some base; otherwise equal networks would be
    refused."""
    before, waiting = computed([one.base for one in bases]), set(OF_NETWORK)
    for one, was in zip(bases, before, strict=True):
        waiting -= {path for path, config in one.told.items() if shapes(config) != shapes(one.base)}
        left = [path for path in one.told if path in waiting]
        found = computed([one.told[path] for path in left])
        waiting -= {path for path, is_now in zip(left, found, strict=True) if np.abs(is_now - was).max() > 1e-4}
    assert waiting == set()
