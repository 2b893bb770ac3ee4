"""Pipeline parallelism: carry out a schedule."""
