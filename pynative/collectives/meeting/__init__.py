"""The meeting of a job's ranks when it starts: on one host over a Unix socket, between hosts over TCP."""
