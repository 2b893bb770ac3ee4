"""Text to Megatron's `.bin`/`.idx` files: `python -m parallel_core.data.preprocess [merge | inspect]`."""
