"""HuggingFace's checkpoints: `config.json` and safetensors files, read and written; files of torch.save, read.

A family is a value: its settings by path and key, and its parameters by name.

    family.py, rules.py              what a family is, and how one of our parameters is made of theirs
    tables.py, families/             the families
    fields.py, kinds.py              which key of config.json is which setting: experts.py, rope.py and windows.py have
                                     those that take more than a name
    config.py                        a family's config.json read, and written; keys that no setting is made of
    read.py, write.py                folders; quantised.py scales weights of 8 bits back, tokenizer.py copies the files
                                     of tokenizers and the settings of generation

Read family.py first, then tables.py, fields.py and read.py.
"""
