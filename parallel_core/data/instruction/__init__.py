"""Instruction data: conversations become prompts and answers, and only answers carry loss.

`handlers` read rows, `templates` describe how a conversation is written, `encoding` makes ids and labels,
`preprocess` and `packing` make the three data sets of `--is-instruction-dataset`.
"""
