"""A training step on packed documents over a step on the same documents each in a row of its own: JSON lines.

    python benchmarks/packing.py --hidden 512 --layers 8 --heads 8 --tokens 2048 --lengths 16 64 128 512

One row of all tokens, a micro-batch, beside a micro-batch of documents, float32, one thread; forward, backward and
update. `ratio` is the median over rounds of (time packed) / (time apart); a round runs both, in turns first. Time is
the process's own. `loss_difference` is that of the first step, relative; what follows `--` are Megatron's flags.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from time import process_time

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.model import model_flags, parser_of, split_at_dashes

LLAMA = ["--normalization", "RMSNorm", "--swiglu", "--position-embedding-type", "rope", "--disable-bias-linear"]


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = parser_of(__doc__, hidden=512, layers=8, heads=8, vocab=8192, tokens=2048, rounds=5)
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 64, 128, 512], help="of a document")
    own, more = split_at_dashes()
    return parser.parse_args(own, argparse.Namespace(megatron=more or LLAMA))


def batch(rows: int, length: int, document: int, vocab: int) -> dict[str, np.ndarray]:
    """A batch of `rows` rows of `length` tokens, the same tokens however they are divided into rows, in documents of
    `document` tokens; the last token of a document has no next one, so its loss does not count."""
    tokens = np.random.default_rng(0).integers(1, vocab, (rows, length), np.int32)
    places = np.arange(length, dtype=np.int32)
    starts = np.broadcast_to(places // document * document, tokens.shape)
    return {
        "tokens": tokens,
        "labels": np.roll(tokens.reshape(-1), -1).reshape(tokens.shape),
        "loss_mask": np.broadcast_to((places % document < document - 1).astype(np.float32), tokens.shape),
        "position_ids": places - starts,
    } | ({"document_starts": starts} if document < length else {})


class Contender:
    """A model and its optimizer that train on one batch."""

    def __init__(self, options: argparse.Namespace, rows: int, length: int, document: int) -> None:
        from mapping import init_configs_from_args, initialize_megatron
        from pynative import parallel_state
        from pynative.optimizer import get_optimizer, get_optimizer_param_scheduler
        from pynative.training.train_step import TrainOneStepCell
        from pynative.training.training import get_model
        from pynative.training.utils import set_parallel_context, set_seed
        from pynative.transformer.gpt_model import GPTModel

        sizes = argparse.Namespace(**{**vars(options), "seq": length, "mbs": rows})
        flags = model_flags(sizes, global_batch_size=rows, train_iters=1000, threads=1)
        config = init_configs_from_args(initialize_megatron(argv=[*flags, *options.megatron]))
        if not parallel_state.model_parallel_is_initialized():
            set_parallel_context(config.parallel_config)
        set_seed(0)
        self.data = batch(rows, length, document, options.vocab)
        model = get_model(lambda **where: GPTModel(config.model_config, **where), config)
        optimizer = get_optimizer(config.optimizer_config, config.training_config, network=model)
        scheduler = get_optimizer_param_scheduler(config)
        self.cell = TrainOneStepCell(model, optimizer, scheduler, config.training_config, config.model_config)

    def step(self) -> tuple[float, float]:
        """(loss, processor seconds) of one training step."""
        start = process_time()
        loss, *_ = self.cell(**self.data)
        return loss, process_time() - start


def row(options: argparse.Namespace, document: int) -> dict[str, float]:
    """The report's line for documents of `document` tokens: a step on them packed into one row over one with a row
    each."""
    count = options.tokens // document
    both = [Contender(options, 1, count * document, document), Contender(options, count, document, document)]
    losses = [contender.step()[0] for contender in both]
    seconds = [[0.0, 0.0] for _ in range(options.rounds)]
    for number, times in enumerate(seconds):
        for which in (0, 1) if number % 2 else (1, 0):
            times[which] = both[which].step()[1]
    return {
        "length": document, "documents": count,
        "ratio": round(statistics.median(packed / apart for packed, apart in seconds), 3),
        "packed_ms": round(1e3 * min(packed for packed, _ in seconds), 1),
        "apart_ms": round(1e3 * min(apart for _, apart in seconds), 1),
        "loss_difference": abs(losses[0] / losses[1] - 1),
    }  # fmt: skip


def main() -> None:
    """Measure documents of each length and print a line for each."""
    options = parse()
    for document in options.lengths:
        print(json.dumps(row(options, document)), flush=True)


if __name__ == "__main__":
    main()
