"""Checkpoints of the real Megatron-Core to record and to read: `python -m tests.support.recorders.megatron_cases OUT
[CASE ...]` records those, or all of them, into OUT/CASE, by the Python that MEGATRON_PYTHON names.

Then `python -m tests.support.recorders.check_megatron OUT/*` reads them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

BASE = (
    "--num-layers 4 --hidden-size 32 --num-attention-heads 4 --ffn-hidden-size 48 --seq-length 16 "
    "--max-position-embeddings 32 --vocab-size 100 --make-vocab-size-divisible-by 8 --micro-batch-size 1 "
    "--global-batch-size 4 --train-iters 2 --norm-weight-noise 0.2"
)
LATENT = "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear"
LLAMA = f"{LATENT} --group-query-attention --num-query-groups 2"
LATENT += " --multi-latent-attention --kv-lora-rank 16 --qk-head-dim 8 --qk-pos-emb-head-dim 4 --v-head-dim 8"
UNTIED = "--untie-embeddings-and-output-weights"
DISTRIBUTED = "--bf16 --accumulate-allreduce-grads-in-fp32 --use-distributed-optimizer"
EXPERTS = "--num-experts 4 --moe-ffn-hidden-size 24 --moe-router-topk 2 --expert-model-parallel-size 2"
TP, PP = "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"
VPP = f"{PP} --num-layers-per-virtual-pipeline-stage 1"
ONE_TP = f"{TP} --sequence-parallel --expert-tensor-parallel-size 1"
DEEPSEEK = (
    f"{LATENT} {UNTIED} --q-lora-rank 12 {EXPERTS} --moe-layer-freq [0,1,1,1] --moe-router-score-function sigmoid "
    "--moe-router-enable-expert-bias --moe-shared-expert-intermediate-size 16 --moe-router-load-balancing-type none"
)
FP16 = "--fp16 --initial-loss-scale 1024"
OVERLAP = "--overlap-grad-reduce"


class Case(NamedTuple):
    """A run of Megatron-Core to record, and how it saves."""

    ranks: int
    flags: str
    sharding: str = "dp_reshardable"
    """The distributed optimizer's sharding format with torch_dist; "legacy": saved with `--ckpt-format torch`."""
    choices: str = "-"


CASES = {
    "flat_vpp": Case(2, f"{LLAMA} {UNTIED} {DISTRIBUTED} {VPP}"),
    "flat_vpp_tied": Case(2, f"{LLAMA} {DISTRIBUTED} {VPP}"),
    "flat_tp_pp_tied": Case(4, f"{DISTRIBUTED} {TP} {PP}"),
    "flat_ep": Case(2, f"{LLAMA} {UNTIED} {DISTRIBUTED} {EXPERTS}"),
    "flat_ep_pp": Case(4, f"{LLAMA} {UNTIED} {DISTRIBUTED} {EXPERTS} {PP}"),
    "flat_ep_etp": Case(4, f"{LLAMA} {UNTIED} {DISTRIBUTED} {EXPERTS} {ONE_TP}"),
    "flat_ep_vpp": Case(4, f"{LLAMA} {UNTIED} {DISTRIBUTED} {EXPERTS} {VPP}"),
    "flat_mixed_layers": Case(4, f"{LLAMA} {UNTIED} {DISTRIBUTED} {EXPERTS} {PP} --moe-layer-freq [0,1,0,1]"),
    "flat_uneven": Case(2, f"{LLAMA} {UNTIED} {DISTRIBUTED} {PP}", choices="first=1"),
    "flat_buckets": Case(2, f"{LLAMA} {UNTIED} {DISTRIBUTED} {OVERLAP}", choices="bucket=6000"),
    "flat_grouped": Case(2, f"{LLAMA} {UNTIED} {DISTRIBUTED} {EXPERTS}", choices="grouped"),
    "flat_deepseek": Case(2, f"{DEEPSEEK} {DISTRIBUTED}"),
    "flat_mtp": Case(2, f"{LLAMA} {UNTIED} {DISTRIBUTED} {PP} --mtp-num-layers 1"),
    "flat_fp16": Case(2, f"{LLAMA} {UNTIED} {FP16} --use-distributed-optimizer"),
    "flat_float32": Case(2, f"{LLAMA} {UNTIED} --use-distributed-optimizer"),
    "constant": Case(2, f"{LLAMA} {UNTIED} {DISTRIBUTED}", choices="constant"),
    "asynchronous": Case(2, f"{LLAMA} {UNTIED} {DISTRIBUTED}", choices="asynchronous"),
    "whole_ep": Case(2, f"{LLAMA} {UNTIED} {DISTRIBUTED} {EXPERTS}", "fully_reshardable"),
    "whole_vpp_tied": Case(2, f"{LLAMA} {DISTRIBUTED} {VPP}", "fully_reshardable"),
    "whole_singleton": Case(2, f"{LLAMA} {UNTIED} {DISTRIBUTED} {EXPERTS}", "fully_reshardable", "singleton"),
    "gathered": Case(2, f"{LLAMA} {UNTIED} {DISTRIBUTED}", "dp_zero_gather_scatter"),
    "ordinary_prefix": Case(2, f"{LLAMA} {UNTIED} --bf16 {EXPERTS}", choices="prefix"),
    "ordinary_qk_norms": Case(2, f"{LLAMA} {UNTIED} {TP} --qk-layernorm"),
    "ordinary_latent": Case(2, f"{LATENT} {UNTIED} {TP} --q-lora-rank 12 --qk-layernorm"),
    "no_optimizer": Case(2, f"{LLAMA} {UNTIED} --bf16 {TP}", choices="no_optim"),
    "legacy_tp_vpp": Case(4, f"{LLAMA} {UNTIED} {DISTRIBUTED} {TP} {VPP}", "legacy"),
    "legacy_tp_pp_tied": Case(4, f"{DISTRIBUTED} {TP} {PP}", "legacy"),
    "legacy_buckets": Case(2, f"{LLAMA} {UNTIED} {DISTRIBUTED} {OVERLAP}", "legacy", "bucket=6000"),
    "legacy_buckets_tied": Case(2, f"{DISTRIBUTED} {OVERLAP}", "legacy", "bucket=3000"),
    "legacy_uneven": Case(2, f"{LLAMA} {UNTIED} {PP}", "legacy", "first=1"),
    "legacy_fp16": Case(2, f"{LLAMA} {UNTIED} {FP16} {TP}", "legacy"),
    "legacy_grouped": Case(2, f"{LLAMA} {UNTIED} --bf16 {EXPERTS}", "legacy", "grouped"),
    "legacy_mtp": Case(2, f"{LLAMA} {TP} --mtp-num-layers 2", "legacy"),
    "legacy_latent": Case(2, f"{LATENT} {UNTIED} {TP}", "legacy"),
    "legacy_etp": Case(4, f"{LLAMA} {UNTIED} --bf16 {EXPERTS} {ONE_TP}", "legacy"),
    "legacy_float32": Case(2, f"{LLAMA} {UNTIED} --use-distributed-optimizer", "legacy"),
    "legacy_biases": Case(2, f"{TP} --squared-relu --add-qkv-bias --make-vocab-size-divisible-by 64", "legacy"),
}


def record(name: str, out: Path) -> int:
    """Record a case into `out`; the recorder's exit code."""
    case, folder = CASES[name], out / name
    folder.mkdir(parents=True)
    form = "torch" if case.sharding == "legacy" else "torch_dist"
    script = Path(__file__).with_name("megatron_checkpoint.py")
    launch = [os.environ["MEGATRON_PYTHON"], "-m", "torch.distributed.run", "--nproc-per-node", str(case.ranks)]
    command = [*launch, str(script), str(folder), form, case.sharding, case.choices, *f"{BASE} {case.flags}".split()]
    environment = {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    with (out / f"{name}.log").open("w") as log:
        return subprocess.run(command, env=environment, stdout=log, stderr=log, timeout=120).returncode


if __name__ == "__main__":
    for chosen in sys.argv[2:] or CASES:
        print(chosen, "failed" if record(chosen, Path(sys.argv[1])) else "recorded", flush=True)
