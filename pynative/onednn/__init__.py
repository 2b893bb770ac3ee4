"""oneDNN, which MindSpore's x86-64 wheel carries: its primitives, which are cached, executed on numpy's memory.

`library` is the C interface through ctypes, `primitives` has the operations made with it, `layouts` describes arrays to
it, and `gemm` is its matrix product that needs no primitive.
"""
