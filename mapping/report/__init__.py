"""What runs have left in their folders, as one HTML page, written or served."""
