"""Tests of instruction data against what MindSpeed-LLM and Megatron-LM write and give to a model."""
