"""Conversations that share a sample (`--pack`, `--neat-pack`)."""

from bisect import bisect
from collections.abc import Sequence

from parallel_core.data.instruction.encoding import IGNORED

Sample = dict[str, list[int]]
"""Name of a data set -> one sample's ids (or labels, or mask) in it."""


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """The numbers of the samples in each pack, from their `lengths`.

    A pack begins with the longest sample that is left, and takes the longest that fits again and again; of equally long
    ones the last. Raises ValueError if a length exceeds `capacity`.
    """
    if (longest := max(lengths, default=0)) > capacity:
        raise ValueError(f"a sample of {longest} tokens does not fit a pack of {capacity}: cut it first")
    numbers: dict[int, list[int]] = {}
    for number, length in enumerate(lengths):
        numbers.setdefault(length, []).append(number)
    left = sorted(numbers)
    packs = []
    while left:
        pack: list[int] = []
        room = capacity
        while (place := bisect(left, room)) > 0:
            length = left[place - 1]
            pack.append(numbers[length].pop())
            room -= length
            if not numbers[length]:
                left.pop(place - 1)
        packs.append(pack)
    return packs


def packed(samples: Sequence[Sample], seq_length: int, pad: int, neat: bool) -> list[Sample]:
    """The samples put together as packs of `seq_length` tokens, the last one or more of which are padding: ids are
    filled up with `pad`, labels with -100.

    neat: the attention mask has the number, from 1 on, of a token's conversation in its pack, and 0 for padding; else
    the samples' own masks, with ones for padding. Raises ValueError for a sample of `seq_length` tokens or more.
    """
    filling = {"input_ids": pad, "labels": IGNORED, "attention_mask": 0 if neat else 1}
    result = []
    for pack in best_fit([len(sample["input_ids"]) for sample in samples], seq_length - 1):
        parts = [samples[number] for number in pack]
        whole: Sample = {key: [token for part in parts for token in part[key]] for key in filling}
        if neat:
            mask = [[place] * len(part["input_ids"]) for place, part in enumerate(parts, start=1)]
            whole["attention_mask"] = [place for run in mask for place in run]
        missing = seq_length - len(whole["input_ids"])
        result.append({key: whole[key] + [value] * missing for key, value in filling.items()})
    return result
