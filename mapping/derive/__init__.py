"""The way from arguments, which flags fill, to values of config fields."""
