"""The kernels' fixtures."""

from tests.pynative.kernels.conftest import default_kernels, implementation

__all__ = ["default_kernels", "implementation"]
