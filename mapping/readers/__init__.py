"""Readers of what people write: command lines, YAML in three layouts, DeepSpeed's JSON.

Each gives `Given` values and findings, and changes nothing.
"""
