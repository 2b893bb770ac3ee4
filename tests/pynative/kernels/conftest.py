"""Each kernel test leaves the process with the default implementation and one thread."""

import pytest

from pynative import kernels
from pynative.startup import device


@pytest.fixture(scope="session", autouse=True)
def cpu_device() -> None:
    device.initialize("CPU", "host", threads=1, world_size=1)


@pytest.fixture(autouse=True)
def default_kernels():
    yield
    kernels.use("host", threads=1)


@pytest.fixture(params=["host", "ops"])
def implementation(request) -> str:
    """Run the test with `host` kernels, then with `ops`; the name of the one selected."""
    kernels.use(request.param)
    return request.param
