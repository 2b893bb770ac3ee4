"""The arithmetic under the host operators: primitives on arrays, and the choice of who computes them."""

from pynative.kernels.host.engine.interface import Engine
from pynative.kernels.host.engine.numpy_engine import NumpyEngine

ENGINE: Engine = NumpyEngine()
"""What host operators compute with in this process."""
