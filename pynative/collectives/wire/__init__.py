"""The transport of bytes between ranks on CPUs: shared memory on a host, TCP between hosts."""
