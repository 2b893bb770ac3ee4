"""Small configuration files for tests, as dictionaries."""

MEGATRON = {
    "language_model": {
        "num_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "layernorm_epsilon": "1e-6",
        "activation_func": "gelu",
        "add_bias_linear": True,
        "num_moe_experts": None,
        "gated_linear_unit": False,
        "hidden_dropout": 0.1,
    },
    "model_parallel": {"tensor_model_parallel_size": 1, "sequence_parallel": False},
    "seq_length": 64,
    "max_position_embeddings": 64,
    "vocab_size": 512,
    "micro_batch_size": 2,
    "global_batch_size": 8,
    "train_iters": 10,
    "lr": "1e-3",
    "fp8_interval": 2,
    "use_mcore_models": True,
}


def nested(blocks: dict | None = None, precision: dict | None = None, parallelization: dict | None = None) -> dict:
    """A small model in the nested layout, with these entries in its blocks, precision and parallelization."""
    attention = {"head_num": 8}
    llm = {"embedding": {"hidden_size": 64}, "tokenizer": {"padded_size": 512}, "position": {"max_size": 64}}
    return {
        "accelerate_config": {"parallelization": parallelization or {}, "precision": precision or {}},
        "model_config": {"llm": {**llm, "blocks": {"num_layers": 4, "attention": attention, **(blocks or {})}}},
    }


def sections(**changes: dict) -> dict:
    """A small model in the layout of sections, with these entries in its sections."""
    model = {"vocab_size": 512, "num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 64}
    return {**changes, "model_config": {**model, **changes.get("model_config", {})}}
