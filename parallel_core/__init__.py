"""The part of training that needs no device: configuration, data, checkpoints, and the plan (who owns what, what runs
when, which bytes move). It does not import MindSpore."""

__version__ = "0.2.0.dev0"
