"""Optimizers over flat buffers, and the norm by which their gradients are clipped."""

from parallel_core.optimizer import get_optimizer_param_scheduler
from pynative.optimizer.flat_optimizer import FlatOptimizer
from pynative.optimizer.optimizer import get_optimizer
