"""Context parallelism: a sequence cut over ranks."""

from pynative.context_parallel.batch import get_batch_on_this_cp_rank
from pynative.context_parallel.ring import ring_attention
from pynative.context_parallel.ulysses import context_parallel_attention, heads_to_sequence, sequence_to_heads
