"""Flags of low-rank adapters."""

from mapping.flags.with_option.build import Acting

ACTING = Acting({"--lora-r": {"default": 16}}, ())
