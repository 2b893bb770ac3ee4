"""Settings of all tests."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.assets import ROOT
from tests.support.leftovers import contents

# What depends on how fast a machine is fails at random on a busy one.
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Tests write to folders of their own: an error after the last test names what is new in the repository's."""
    before = contents(ROOT)
    yield
    left = contents(ROOT) - before
    assert not left, f"tests left in {ROOT}: {', '.join(sorted(left))}"
