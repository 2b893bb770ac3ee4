"""Readers of configurations as people write them: command lines, YAML in three layouts, DeepSpeed's JSON.

Each returns `Given` values and findings, and changes nothing.
"""
