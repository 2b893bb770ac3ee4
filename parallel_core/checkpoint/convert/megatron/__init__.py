"""Megatron-LM's checkpoints: one file a rank (`--ckpt-format torch`, read and written), and `torch_dist` (read)."""
