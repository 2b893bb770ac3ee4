"""The start of a rank: msrun, the device, log messages, the rank's whereabouts, and its end with the launcher."""
