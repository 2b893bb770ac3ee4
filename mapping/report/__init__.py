"""The figures in the folders of runs, as one HTML page, written or served."""
