"""Flat buffers as a plan: where parameters and gradients lie, what an update sweeps, what moves over which group.

Parameters of one type whose gradients have one type and are summed over one group share a buffer, so that one
collective reduces a bucket and one sweep updates a segment. Offsets are elements; a buffer of gradients has the same
ones as its buffer of parameters. What a rank owns - all of a buffer, or with the distributed optimizer its part of
every bucket - is spans of these offsets.
"""
