"""Options that nobody reads: what they ask for holds in any case, or the result is the same."""

from parallel_core.config.tree import path_of

_IN_FLOAT32 = "attention's scores and softmax are float32 always"
_RECORDED = "MindSpore's profiler records it whenever it records"

_REASONS = {
    "next_tokens": "the model is causal: a query sees no token after its own",
    "apply_query_key_layer_scaling": (
        "attention's scores are float32, where dividing by the layer's number and back changes nothing"
    ),
    "attention_softmax_in_fp32": _IN_FLOAT32,
    "masked_softmax_fusion": _IN_FLOAT32,
    "fp16_lm_cross_entropy": (
        "cross entropy takes logits in their own type and computes in float32, as Megatron-Core's does"
    ),
    "transformer_impl": f"there is one implementation; what Megatron's two differ in: {_IN_FLOAT32}",
    "longrope_freqs_type": "both forms give the same angles",
    "instruction.pack": "conversations are packed when the data are made",
    "enable_thinking": "thoughts are written when the data are made",
    **dict.fromkeys(("profile_framework", "profile_communication", "profile_op_time"), _RECORDED),
}
ALWAYS = {path_of(name): reason for name, reason in _REASONS.items()}
"""Path -> why it does nothing, whatever is beside it."""
