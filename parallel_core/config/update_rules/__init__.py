"""Optimizers as a plan knows them, one file and one value for each."""
