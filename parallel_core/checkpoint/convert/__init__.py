"""Checkpoints of other tools, and ours: read from one format and written in another.

Every reader gives a `Model` (model.py): whole tensors by Megatron's global names, most of them unread, and the settings
that our configuration needs; every writer takes one. The names that a family of models or a version of a tool has for
its parameters are a table of rows.

    model.py                         a model between two formats
    formats.py                       which format a folder is of, its reader, and the checksums of its files
    native.py                        ours: low-rank adapters are merged into their weights here
    huggingface/, megatron/          theirs, both ways
    reader.py                        `--load` of any of them: a converted model as a checkpoint of ours
    parameters.py                    whether weights are those of the network that settings describe, and whether what
                                     was written is what was read, bit by bit
    logits.py                        whether the engine computes the same logits of both
    __main__.py                      the command

Read model.py first, then huggingface/tables.py or megatron/names.py and shards.py, then the readers.
"""
