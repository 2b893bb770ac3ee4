"""Families of HuggingFace's models, related ones in one file: settings in config.json, names of parameters, fixed
settings. Others, such as LLaMA's, are in tables.py."""
