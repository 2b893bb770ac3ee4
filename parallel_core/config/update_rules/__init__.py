"""The optimizers: for each a file with its section of options and its `UpdateRule`."""
