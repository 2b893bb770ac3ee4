"""The arithmetic of experts, on arrays of NumPy: routing, the rows that travel between ranks, copies of experts."""
