"""The bytes of tensors: as numpy's arrays, written in place, rounded."""
