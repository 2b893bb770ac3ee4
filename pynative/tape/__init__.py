"""MindSpore's autograd: forwards whose graph is kept for a later backward, hand-written gradients, and events of
layers."""
