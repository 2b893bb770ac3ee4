"""Settings of all tests."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import fast
from tests.support.assets import ROOT
from tests.support.leftovers import contents

# Tests that depend on a machine's speed fail at random on a busy one.
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")


def pytest_configure(config: pytest.Config) -> None:
    """Fast tests alone are held to be so."""
    if fast.is_alone(config):
        fast.keep_fast()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m fast`: skip folders that have no fast test."""
    return True if fast.is_alone(config) and not fast.concerns(collection_path) else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests are fast by where they lie."""
    if fast.is_fast(item):
        item.add_marker("fast")


def pytest_collection_finish() -> None:
    """Modules that are imported by now live as long as the process: no collection of garbage need look at them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Tests write to folders of their own: an error after the last test names what is new in the repository's."""
    before = contents(ROOT)
    yield
    left = contents(ROOT) - before
    assert not left, f"tests left in {ROOT}: {', '.join(sorted(left))}"
