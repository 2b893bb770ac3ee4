"""Attention in numbers: rotary angles and their scaling, which scores are computed, how fused rows are cut."""
