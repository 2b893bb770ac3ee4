"""The start of a rank: msrun, the device, messages, and the end with the launcher."""
