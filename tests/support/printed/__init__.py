"""The documents' printed blocks, the names in them, and the handling of each by this project."""
