"""Recomputation in the backward pass (Chen et al., 2016): its layers and parts.

`tables` turns a user's setting into numbers of layers by chunk and stage, `parts` is how a block describes which of its
submodules may run again, and `plan` puts both notations, Megatron's flags and the lists by stage, into one value.
`offload` gives the modules whose saved activations lie in host memory.
"""
