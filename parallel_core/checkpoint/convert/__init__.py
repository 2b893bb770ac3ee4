"""Checkpoints of other tools, and ours: what is read from one format is written in any other.

Every reader gives a `Model` (model.py): whole tensors by Megatron's global names, unread, and the settings that our
configuration needs; every writer takes one. In between nothing knows where it came from. What a family of models or a
version of a tool calls its parameters is a table of rows; experts and latent attention are rows like any other.

Read model.py first, then huggingface/tables.py or megatron/names.py and cuts.py, then the readers.
"""
