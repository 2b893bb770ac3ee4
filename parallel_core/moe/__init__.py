"""Experts in numbers: routing, the rows that travel between ranks, and copies of experts."""
