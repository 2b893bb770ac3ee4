"""Formulas of numbers: types, rounding to 8 and 4 bits, activations, averaging, loss scales, learning rates, weights of
hyper-connections, Newton-Schulz iterations."""
