"""How bytes get from rank to rank of CPUs: shared memory on a host, TCP between hosts."""
