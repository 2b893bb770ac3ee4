"""Each kernel test leaves the process with the default implementation and one thread."""

import mindspore
import pytest

from pynative import kernels


@pytest.fixture(scope="session", autouse=True)
def cpu_device() -> None:
    mindspore.set_device("CPU")
    mindspore.runtime.launch_blocking()


@pytest.fixture(autouse=True)
def default_kernels():
    yield
    kernels.use("host", threads=1)


@pytest.fixture(params=["host", "ops"])
def implementation(request) -> str:
    """Both implementations, one after the other, selected."""
    kernels.use(request.param)
    return request.param
