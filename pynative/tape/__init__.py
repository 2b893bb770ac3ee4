"""MindSpore's autograd: forwards whose graph is kept for a later backward, hand-written gradients, events of layers,
and two computations that take turns."""
