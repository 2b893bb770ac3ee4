"""Formulas of numbers: types, activations, averaging, loss scales, learning rates."""
