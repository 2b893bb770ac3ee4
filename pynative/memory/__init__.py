"""The memory of tensors: read as numpy's arrays, written in place, rounded to 16-bit types."""
