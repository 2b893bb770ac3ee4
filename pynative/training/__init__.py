"""Training: the loop, a step of it, its data, losses and callbacks."""
