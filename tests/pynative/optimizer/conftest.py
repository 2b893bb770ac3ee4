"""The fixtures of the kernels' tests for those of the optimizer."""

from tests.pynative.kernels.conftest import default_kernels, implementation

__all__ = ["default_kernels", "implementation"]
