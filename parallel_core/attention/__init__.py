"""Attention in numbers: rotary angles and their scaling, changes of scores, the order of fused rows."""
