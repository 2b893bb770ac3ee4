"""Context parallelism: each sequence is cut over the ranks of a group, by Ulysses, a ring, or both."""

from pynative.context_parallel.batch import get_batch_on_this_cp_rank
from pynative.context_parallel.ring import ring_attention
from pynative.context_parallel.ulysses import context_parallel_attention, heads_to_sequence, sequence_to_heads
