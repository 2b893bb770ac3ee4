"""Megatron-LM's checkpoints: one file a rank (`--ckpt-format torch`, read and written), and `torch_dist` (read).

    names.py, cuts.py, chunks.py     the tables: what a parameter is called, how it is cut, who has it, in which order
    args.py                          Megatron's `args` and our settings, each of the other
    legacy.py                        files of ranks, read: shards.py puts the ranks' parts together
    optimizer.py                     states in such files: by number, or flat in the order of memory
    write.py, optimizer_out.py       such files, written for any layout
    torch_dist.py                    the newer format, read: blocks_of_states.py and buckets.py for its states
    experts.py, rounding.py          experts that are one parameter; whether float32 values are those of weights

Read names.py and cuts.py first, then legacy.py.
"""
