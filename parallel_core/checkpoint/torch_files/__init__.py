"""Files of `torch.save`, read and written, and folders of `torch.distributed.checkpoint`, read, without torch.

A file of torch.save is a zip archive of a pickle and of the storages that it names. pickles.py reads the pickle with
functions of its own and stand-ins for everything that it could call, so that no file can run code; archive.py finds the
storages; write.py is the other way. distributed.py reads folders in which tensors lie in chunks, each of them such an
archive.
"""
