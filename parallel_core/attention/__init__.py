"""Attention in numbers: rotary angles and their scaling, changes and bounds of scores, the order of fused rows, linear
attention as a recurrence."""
