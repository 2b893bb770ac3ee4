"""`python -m torch.distributed.run --nproc-per-node 2 of_megatron.py CASE [CASE ...]`, by a Python with megatron-core:
whether its models take what was written for two tensor-parallel ranks.

Each case has `megatron/`, which is read, and `ids.npy`; logits go to `logits.npy`. Every weight must be there and no
other. Calls that name a CUDA device get the CPU, and without dropout nothing is drawn. Nothing of this project is
imported.
"""

import contextlib
import os
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
torch.cuda.current_device = lambda: torch.device("cpu")
torch.Tensor.cuda = lambda self, *_, **__: self

from megatron.core import parallel_state  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec  # noqa: E402
from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region  # noqa: E402
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402

CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()
moe_utils.te_general_gemm = None  # Megatron calls Transformer Engine's product without testing whether it is installed


def config_of(args: Namespace) -> TransformerConfig:
    """Megatron-Core's config from a checkpoint's args, for models without latent attention."""
    experts = {}
    if args.num_experts:
        experts = {
            "num_moe_experts": args.num_experts,
            "moe_ffn_hidden_size": args.moe_ffn_hidden_size,
            "moe_router_topk": args.moe_router_topk,
            "moe_router_pre_softmax": args.moe_router_pre_softmax,
            "moe_token_dispatcher_type": "allgather",
            "moe_router_load_balancing_type": "none",
        }
    gated = {"activation_func": F.silu, "gated_linear_unit": True} if args.swiglu else {}
    return TransformerConfig(
        num_layers=args.num_layers,
        hidden_size=args.hidden_size,
        num_attention_heads=args.num_attention_heads,
        num_query_groups=args.num_query_groups if args.group_query_attention else None,
        kv_channels=args.kv_channels,
        ffn_hidden_size=args.ffn_hidden_size,
        normalization=args.normalization,
        layernorm_epsilon=args.norm_epsilon,
        add_bias_linear=args.add_bias_linear,
        add_qkv_bias=args.add_qkv_bias,
        qk_layernorm=args.qk_layernorm,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        masked_softmax_fusion=False,
        bias_activation_fusion=bool(args.bias_gelu_fusion) and not args.swiglu,  # the tanh form of gelu
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        tensor_model_parallel_size=dist.get_world_size(),
        **experts,
        **gated,
    )


def model_of(args: Namespace) -> GPTModel:
    """Megatron's GPT model of local (not Transformer Engine) layers for these args."""
    config = config_of(args)
    if args.num_experts:
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=args.normalization)
    else:
        spec = get_gpt_layer_local_spec(None, False, args.qk_layernorm, normalization=args.normalization)
    return GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        parallel_output=True,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type=args.position_embedding_type,
        rotary_base=int(args.rotary_base),
    )


def main() -> None:
    """Load each case into Megatron's model over two ranks and write its logits."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=dist.get_world_size())
    torch.serialization.add_safe_globals([Namespace])
    for folder in map(Path, sys.argv[1:]):
        (path,) = folder.glob(f"megatron/*/mp_rank_{rank:02d}/model_optim_rng.pt")
        content = torch.load(path, weights_only=True)
        model = model_of(content["args"]).eval()
        wanted = {name for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
        assert wanted == set(content["model"]), (folder, wanted ^ set(content["model"]))
        model.load_state_dict(content["model"], strict=False)  # not strict: local layers have None for states of fp8
        ids = torch.from_numpy(np.load(folder / "ids.npy")).long()
        count = ids.shape[1]
        mask = torch.tril(torch.ones(count, count)).view(1, 1, count, count) < 0.5
        with torch.no_grad():
            logits = model(ids, torch.arange(count)[None].expand(ids.shape), mask)
            logits = gather_from_tensor_model_parallel_region(logits.float())
        if rank == 0:
            np.save(folder / "logits.npy", logits.numpy())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
