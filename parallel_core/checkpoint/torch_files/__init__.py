"""Files of `torch.save`, read and written without torch.

Such a file is a zip archive of a pickle and of the storages that it names. pickles.py reads the pickle with stand-ins
for everything that it could call, so that no file can run code; archive.py finds the storages; write.py is the other
way.
"""
