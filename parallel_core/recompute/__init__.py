"""Recomputation in the backward pass (Chen et al., 2016): which layers and parts run again.

`tables` turns a setting into numbers of layers by chunk and stage, `parts` describes the parts of a block that may run
again, `plan` puts Megatron's flags and MindFormers' lists by stage into one value, `offload` gives the modules whose
saved activations lie in host memory.
"""
