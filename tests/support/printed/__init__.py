"""The recorded documents' printed blocks, the names in them, and what this project makes of each."""
