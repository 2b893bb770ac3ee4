"""Flat buffers as a plan: the places of parameters and gradients, the runs of elements that an optimizer updates at
once, the collectives over groups.

Parameters of one type whose gradients have one type and are summed over one group share a buffer, so that collectives
reduce whole buckets and one call updates a run of elements. Offsets are elements; a buffer of gradients has the same
ones as its buffer of parameters. The part that a rank owns - all of a buffer, or with the distributed optimizer its
part of every bucket - is spans of these offsets.
"""
