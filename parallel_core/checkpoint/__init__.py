"""Checkpoints on disk: which bytes lie where, how they are published, how another layout reads them.

    <save directory>/
        latest_checkpointed_iteration.txt      the iteration to resume from, as text
        iter_0000300/
            manifest.json                      manifest.py: what the checkpoint holds and where
            mp_rank_TT_PPP[_RRR].safetensors   tensor_file.py: the shards of tensor rank TT on pipeline stage PPP, of
                                               replica RRR unless that is 0 (converted: TT is 0, PPP counts files)

Read layout.py first (a shard as boxes of the whole), then writer.py and commit.py, then reader.py. Beside them:
networks.py (whether two are of one network), lazy.py (tensors that are read when they are wanted), snapshot.py (copies
for a save in the background), direct_file.py (writing past the page cache), mindspore_file.py (`--ckpt-format ckpt`).
convert/ has other tools' formats, torch_files/ the files that torch writes.
"""
