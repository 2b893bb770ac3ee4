"""Experts in numbers: routing, which rows travel where, which experts have copies."""
