"""Optimizers as the plan sees them: one file with one value for each."""
