"""What the documents print: their blocks, the names in them, and what becomes of each here."""
