"""The meeting of a job's ranks."""
