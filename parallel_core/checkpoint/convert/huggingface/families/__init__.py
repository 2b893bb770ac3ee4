"""Families of HuggingFace's models, a file each: settings in config.json, names of parameters, fixed settings."""
