"""Tests of preprocessing: text to token files."""
