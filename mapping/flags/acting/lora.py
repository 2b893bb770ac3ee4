"""Flags of low-rank adapters."""

from mapping.flags.acting.build import Acting

ACTING = Acting({"--lora-r": {"default": 16}}, ())
