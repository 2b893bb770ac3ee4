"""Multi-token prediction: MindSpeed-LLM's flags and Megatron's mean different things where they say nothing."""

from typing import Any


def further_loss_factor(args: Any) -> float | None:
    """MindSpeed-LLM's --num-nextn-predict-layers has another default beside it than Megatron's --mtp-num-layers. In
    another parser's namespace, which does not say what was given, a value that is no default was."""
    factor, scale = args.mtp_loss_scaling_factor, args.mtp_loss_scale
    if scale is None or factor != 0.1 or "mtp_loss_scaling_factor" in args.given:
        return factor
    is_given = scale != 0.3 or "mtp_loss_scale" in args.given
    return scale if is_given or args.num_nextn_predict_layers else factor


def shares_with_further_layers(args: Any) -> bool:
    """MindSpeed-LLM's further layers have an embedding and an output layer of their own unless its flag is there;
    Megatron's never do."""
    return args.share_mtp_embedding_and_output_weight or not args.num_nextn_predict_layers
