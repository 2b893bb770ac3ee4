"""Recomputation in the backward pass (Chen et al., 2016): its layers and parts.

`tables` turns what a user wrote into layers by chunk and stage, `parts` is how a block describes what of it may run
again, and `plan` puts both notations, Megatron's flags and the lists by stage, into one value. `offload` says what lies
in host memory.
"""
