"""Settings of the tests of the data pipeline."""

from hypothesis import settings

# Time limits per example fail at random on a busy machine.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
