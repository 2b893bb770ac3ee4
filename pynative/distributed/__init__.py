"""Data parallelism: parameters and gradients in flat buffers, and their reduction."""
