"""Pipeline parallelism: the execution of a schedule on a stage."""
