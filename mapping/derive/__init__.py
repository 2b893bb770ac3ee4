"""From arguments, which are what flags fill, to values of config fields."""
