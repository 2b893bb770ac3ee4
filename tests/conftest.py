"""Settings of all tests: no deadlines for hypothesis, the `fast` marker by folder, and a check that tests leave no file
behind."""

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
    """With `-m fast`: an audit hook refuses from here on what fast tests must not do, such as starting a process."""
    if fast.is_alone(config):
        fast.keep_fast()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m fast`: skip folders that have no fast test."""
    return True if fast.is_alone(config) and not fast.concerns(collection_path) else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test as `fast` by the folder that it lies in (`tests/support/fast.py`)."""
    if fast.is_fast(item):
        item.add_marker("fast")


def pytest_collection_finish() -> None:
    """Freeze all objects made so far: modules live as long as the process, so the garbage collector need not look at
    them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail after the session's last test, with names, if a test has left new files in the repository instead of its own
    folder."""
    before = contents(ROOT)
    yield
    left = contents(ROOT) - before
    assert not left, f"tests left in {ROOT}: {', '.join(sorted(left))}"
