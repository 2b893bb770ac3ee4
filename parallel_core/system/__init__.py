"""The host and its files: environment, processes, devices, command lines, bytes on disk."""
