"""Megatron-LM's checkpoints: files of ranks (`--ckpt-format torch`, read and written), and `torch_dist` (read).

    names.py, shards.py              what a parameter is called, who has it, in which order; how it is cut
    args.py                          our settings made of Megatron's `args`, and `args` made of our settings
    legacy.py                        files of ranks, read: shards.py puts the ranks' parts together
    optimizer.py                     states in such files: by number, or flat in the order of memory
    out_norm.py                      one kind of weight that Megatron may store minus 1
    write.py                         such files, written for a given layout
    torch_dist.py                    the newer format, read: buckets.py for its flat states

Read names.py and shards.py first, then legacy.py.
"""
