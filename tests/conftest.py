"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# What depends on how fast a machine is fails at random on a busy one.
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")
