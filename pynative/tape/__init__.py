"""MindSpore's autograd: graphs that are kept, gradients by hand, and when a layer's are there."""
