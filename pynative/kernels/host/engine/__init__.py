"""The arithmetic under the host operators: primitives on arrays, and the choice of the engine that computes them."""

from pynative.kernels.host.engine import onednn
from pynative.kernels.host.engine.interface import Engine
from pynative.kernels.host.engine.numpy_engine import NumpyEngine

ENGINE: Engine = onednn.OneDnnEngine() if onednn.is_available() else NumpyEngine()
"""The engine that host operators compute with: oneDNN where MindSpore's wheel brings it (x86-64 Linux), else numpy."""
