"""HuggingFace's checkpoints: `config.json` and safetensors files (older ones: files of torch.save), read and written.

A family is a value of tables.py: its settings by path and key, and its parameters by name.

    tables.py, rules.py              the families: their parameters, and how one of ours is made of theirs
    fields.py, kinds.py              which key of config.json is which setting: experts.py, rope.py and windows.py have
                                     those that take more than a name
    config.py                        a family's config.json read, and written; keys that no setting is made of
    read.py, write.py                folders; quantised.py multiplies weights of 8 bits, tokenizer.py copies the rest

Read tables.py first, then fields.py and read.py.
"""
