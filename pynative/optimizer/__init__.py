"""Optimizers over flat buffers, and the gradient norm that clips them."""

from parallel_core.optimizer import get_optimizer_param_scheduler
from pynative.optimizer.flat_optimizer import FlatOptimizer
from pynative.optimizer.optimizer import get_optimizer
