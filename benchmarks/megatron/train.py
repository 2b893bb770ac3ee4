"""Tokens a second of Megatron-Core on a CPU, for the model of `benchmarks/throughput.py`: one line of JSON.

    M/bin/python benchmarks/megatron/train.py --tp 2 --precision bf16

M is an environment with requirements.txt. Core attention is Megatron's local one, because Transformer Engine needs a
GPU. `peak_rss_mb` is the most memory that rank 0 had.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SIZES = {"hidden": 512, "layers": 8, "heads": 8, "seq": 512, "mbs": 4, "vocab": 8192}
LAYOUT = {"tp": 1, "pp": 1, "dp": 1, "threads": 1, "steps": 3, "micro_batches": 0}


def parse() -> argparse.Namespace:
    """The command line: the options of `benchmarks/throughput.py`, with the same defaults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (SIZES | LAYOUT).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--rendezvous", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.micro_batches = options.micro_batches or (4 if options.pp > 1 else 1)
    return options


def build(options: argparse.Namespace) -> tuple[Any, Any]:
    """(this rank's model chunk in Megatron's wrappers, the optimizer)."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.transformer_config import TransformerConfig

    is_bf16 = options.precision == "bf16"
    dtype = torch.bfloat16 if is_bf16 else torch.float32
    config = TransformerConfig(
        num_layers=options.layers, hidden_size=options.hidden, num_attention_heads=options.heads,
        hidden_dropout=0.0, attention_dropout=0.0, use_cpu_initialization=True, masked_softmax_fusion=False,
        gradient_accumulation_fusion=False, persist_layer_norm=False, params_dtype=dtype, pipeline_dtype=dtype,
        bf16=is_bf16, tensor_model_parallel_size=options.tp, pipeline_model_parallel_size=options.pp,
        deallocate_pipeline_outputs=False,  # gloo may still be sending them
    )  # fmt: skip
    model = GPTModel(
        config, get_gpt_layer_local_spec(), options.vocab, options.seq,
        pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=True,
    )  # fmt: skip
    wrapped = Float16Module(config, model) if is_bf16 else model
    chunk = DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), wrapped)
    settings = OptimizerConfig(optimizer="adam", lr=1e-4, clip_grad=1.0, bf16=is_bf16, params_dtype=dtype)
    optimizer = get_megatron_optimizer(settings, [chunk])
    config.grad_scale_func, config.finalize_model_grads_func = optimizer.scale_loss, finalize_model_grads
    return chunk.train(), optimizer


def batch_function(options: argparse.Namespace) -> Any:
    """A forward_step_func of Megatron's form that takes the same batch of random tokens at every call."""
    import torch

    generator = torch.Generator().manual_seed(torch.distributed.get_rank())
    tokens = torch.randint(0, options.vocab, (options.mbs, options.seq + 1), generator=generator)
    positions = torch.arange(options.seq).expand(options.mbs, -1).contiguous()
    mask = torch.ones(options.seq, options.seq).triu(1).bool().expand(options.mbs, 1, -1, -1)
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def loss(output: Any) -> tuple[Any, Any, dict[str, Any]]:
        total = output.float().sum()
        return total, torch.tensor(labels.numel(), dtype=torch.int), {"lm loss": total.detach().view(1)}

    return lambda _, model: (model(inputs, positions, mask, labels=labels), loss)


def work(options: argparse.Namespace) -> None:
    """Train as one of the processes: a step to warm up, then those that are measured; rank 0 prints."""
    from benchmarks.megatron.on_cpu import complete, redirect

    redirect()
    import torch
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    complete()
    torch.set_num_threads(options.threads)
    rank, world = int(os.environ["RANK"]), options.tp * options.pp * options.dp
    torch.distributed.init_process_group("gloo", f"file://{options.rendezvous}", rank=rank, world_size=world)
    parallel_state.initialize_model_parallel(options.tp, options.pp)
    model_parallel_cuda_manual_seed(1)
    model, optimizer = build(options)
    forward_step, run = batch_function(options), get_forward_backward_func()
    seconds = []
    for _ in range(options.steps + 1):
        torch.distributed.barrier()
        began = time.perf_counter()
        model.zero_grad_buffer()
        optimizer.zero_grad()
        run(
            forward_step_func=forward_step, data_iterator=iter(()), model=[model],
            num_microbatches=options.micro_batches, seq_length=options.seq, micro_batch_size=options.mbs,
            forward_only=False,
        )  # fmt: skip
        optimizer.step()
        torch.distributed.barrier()
        seconds.append(time.perf_counter() - began)
    if rank == 0:
        step = statistics.median(seconds[1:])
        tokens = options.mbs * options.micro_batches * options.dp * options.seq
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        figures = {"tokens_per_s": round(tokens / step, 1), "step_ms": round(step * 1e3, 1), "peak_rss_mb": peak}
        settings = {name: value for name, value in vars(options).items() if name != "rendezvous"}
        print(json.dumps({**settings, **figures}), flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main() -> None:
    """Start the ranks and wait for them; the exit code is the worst of theirs."""
    options = parse()
    if options.rendezvous:
        work(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *sys.argv[1:], "--rendezvous", f"{folder}/meeting"]
        threads = {"OMP_NUM_THREADS": str(options.threads), "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        ranks = [
            subprocess.Popen(command, env={**os.environ, **threads, "RANK": str(rank)})
            for rank in range(options.tp * options.pp * options.dp)
        ]
        sys.exit(max(abs(rank.wait()) for rank in ranks))


if __name__ == "__main__":
    main()
