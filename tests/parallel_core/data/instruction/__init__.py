"""Instruction data against what MindSpeed-LLM and Megatron-LM write and feed."""
