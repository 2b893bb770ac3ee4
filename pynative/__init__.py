"""The execution: MindSpore cells that carry the plan out. The only package that imports MindSpore."""
