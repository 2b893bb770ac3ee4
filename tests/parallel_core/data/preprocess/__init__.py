"""Text to token files."""
