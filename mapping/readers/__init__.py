"""Readers of what people write: command lines, launch scripts, YAML in three layouts, DeepSpeed's JSON.

Each gives `Given` values and findings, and changes nothing.
"""
