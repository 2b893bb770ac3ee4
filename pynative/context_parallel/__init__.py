"""Context parallelism: a sequence cut over ranks."""
