"""HuggingFace's checkpoints: `config.json` and safetensors files (older ones: files of torch.save), read and written.

A family is a value of tables.py: its settings by path and key, and its parameters by name.
"""
