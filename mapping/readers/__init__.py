"""Readers of configurations as people write them: command lines, YAML in three layouts, DeepSpeed's JSON, MindSpeed's
file for FSDP2, and the options that a checkpoint holds.

Their results have `Given` values and findings.
"""
