"""Instruction data: conversations as prompts and answers, of which in general the answers carry loss; with --sft's
prompt format `default` every token does.

`handlers` read rows, `templates` describe how a conversation is written, `encoding` makes ids and labels, `preprocess`
writes them as data sets, and `packing` puts several conversations into one sample.
"""
