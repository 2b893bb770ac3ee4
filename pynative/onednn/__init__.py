"""oneDNN, which MindSpore's x86-64 wheel carries: its primitives, each made once, executed on numpy's memory.

`library` is the C interface through ctypes, `primitives` what is made of it, `arrays` the way from arrays to layouts.
"""
