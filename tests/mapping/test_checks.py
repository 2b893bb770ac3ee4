"""Every rule: a bad command line is refused by a message that names the flag at fault; near misses pass."""

from __future__ import annotations

import pytest

from tests.mapping.lines import reading

BAD = [
    # the command line itself
    ("--num-layer 4", 1, "--num-layer:"),
    ("--no-such-flag 3", 1, "--no-such-flag"),
    ("stray", 1, "'stray'"),
    ("--bf16 true", 1, "--bf16"),
    ("--seed", 1, "--seed"),
    ("--seed 1 2", 1, "--seed"),
    ("--lr abc", 1, "--lr abc"),
    ("--num-layers 4.0", 1, "--num-layers 4.0"),
    ("--lr nan", 1, "--lr nan"),
    ("--lr inf", 1, "--lr inf"),
    ("--normalization BatchNorm", 1, "--normalization BatchNorm"),
    ("--rampup-batch-size 2 2", 1, "--rampup-batch-size"),
    # what must be there
    ("~num-layers", 1, "--num-layers"),
    ("~hidden-size", 1, "--hidden-size"),
    ("~num-attention-heads", 1, "--num-attention-heads"),
    ("~seq-length", 1, "--seq-length"),
    ("~max-position-embeddings", 1, "--max-position-embeddings"),
    ("~micro-batch-size", 1, "--micro-batch-size"),
    ("~train-iters", 1, "--train-iters"),
    ("~lr", 1, "--lr"),
    ("~vocab-size", 1, "--vocab-size"),
    # ranges
    ("--num-layers 0", 1, "--num-layers 0"),
    ("--micro-batch-size 0", 1, "--micro-batch-size 0"),
    ("--tensor-model-parallel-size 0", 1, "--tensor-model-parallel-size 0"),
    ("--attention-dropout 1.5", 1, "--attention-dropout 1.5"),
    ("--lr -1", 1, "--lr -1"),
    ("--weight-decay -0.1", 1, "--weight-decay -0.1"),
    ("--seed 0", 1, "--seed 0"),
    ("--log-interval 0", 1, "--log-interval 0"),
    ("--lr-warmup-fraction 1", 1, "--lr-warmup-fraction 1"),
    ("--train-iters 0", 1, "--train-iters 0"),
    ("--adam-beta2 1.0", 1, "--adam-beta2 1.0"),
    ("--fp16 --initial-loss-scale 0.5", 1, "--initial-loss-scale 0.5"),
    ("--position-embedding-type rope --rotary-percent 0", 1, "--rotary-percent 0"),
    # sizes that must divide
    ("--tensor-model-parallel-size 2", 3, "--tensor-model-parallel-size 2"),
    ("--tensor-model-parallel-size 8", 8, "--num-attention-heads 4"),
    ("--num-attention-heads 5", 1, "--hidden-size 64"),
    ("--group-query-attention --num-query-groups 3", 1, "--num-query-groups 3"),
    ("--ffn-hidden-size 65 --tensor-model-parallel-size 2", 2, "--ffn-hidden-size 65"),
    ("--padded-vocab-size 513 --tensor-model-parallel-size 2", 2, "--padded-vocab-size 513"),
    ("--global-batch-size 7", 1, "--global-batch-size 7"),
    ("--global-batch-size 8", 3, "--global-batch-size 8"),
    ("--max-position-embeddings 32", 1, "--max-position-embeddings 32"),
    ("--padded-vocab-size 256", 1, "--padded-vocab-size 256"),
    ("--pipeline-model-parallel-size 8", 8, "--pipeline-model-parallel-size 8"),
    ("--seq-length 63 --tensor-model-parallel-size 2 --sequence-parallel", 2, "--seq-length 63"),
    ("--seq-length 62 --context-parallel-size 4", 4, "--seq-length 62"),
    # pipeline
    ("--num-layers-per-virtual-pipeline-stage 1", 1, "--num-layers-per-virtual-pipeline-stage 1"),
    (
        "--num-layers-per-virtual-pipeline-stage 3 --pipeline-model-parallel-size 2",
        2,
        "--num-layers-per-virtual-pipeline-stage 3",
    ),
    (
        "--num-layers-per-virtual-pipeline-stage 1 --pipeline-model-parallel-size 2 --global-batch-size 6",
        2,
        "--global-batch-size 6",
    ),
    ("--num-layer-list 1,2 --pipeline-model-parallel-size 2", 2, "--num-layer-list [1, 2]"),
    ("--num-layer-list 4 --pipeline-model-parallel-size 2", 2, "--num-layer-list [4]"),
    ("--noop-layers 4", 1, "--noop-layers 4"),
    (
        "--decoder-first-pipeline-num-layers 1 --pipeline-model-parallel-size 3 --global-batch-size 6",
        3,
        "--decoder-first-pipeline-num-layers 1",
    ),
    ("--standalone-embedding-stage", 1, "--standalone-embedding-stage"),
    # context parallelism
    ("--context-parallel-size 4 --context-parallel-algo hybrid_cp_algo", 4, "hybrid_cp_algo"),
    (
        "--context-parallel-size 4 --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 3",
        4,
        "--ulysses-degree-in-cp 3",
    ),
    ("--context-parallel-size 8 --context-parallel-algo ulysses_cp_algo", 8, "--num-attention-heads 4"),
    ("--context-parallel-algo adaptive_cp_algo", 1, "--context-parallel-algo adaptive_cp_algo"),
    # experts
    ("--expert-model-parallel-size 2", 2, "--expert-model-parallel-size 2"),
    ("--num-experts 3 --expert-model-parallel-size 2", 2, "--num-experts 3"),
    ("--num-experts 4 --expert-model-parallel-size 4", 2, "--expert-model-parallel-size 4"),
    ("--num-experts 2 --moe-router-topk 4", 1, "--moe-router-topk 4"),
    ("--num-experts 4 --tensor-model-parallel-size 2", 2, "--sequence-parallel"),
    ("--num-experts 4 --moe-router-enable-expert-bias", 1, "--moe-router-enable-expert-bias"),
    ("--num-experts 4 --moe-pad-expert-input-to-capacity", 1, "--moe-pad-expert-input-to-capacity"),
    ("--num-experts 4 --moe-layer-freq [1,0]", 1, "--moe-layer-freq [1, 0]"),
    # schedules, optimizer, checkpoints
    ("--min-lr 1", 1, "--min-lr 1"),
    ("--lr-warmup-iters 10", 1, "--lr-warmup-iters 10"),
    ("--lr-warmup-fraction 0.1 --lr-warmup-iters 5", 1, "--lr-warmup-iters 5"),
    ("--train-samples 100", 1, "--train-samples 100"),
    ("--lr-decay-samples 50", 1, "--lr-decay-samples"),
    ("--rampup-batch-size 2 2 20", 1, "--rampup-batch-size"),
    ("~train-iters --train-samples 100 --rampup-batch-size 4 3 20", 1, "--rampup-batch-size 4 3 20"),
    ("--lr-decay-style WSD", 1, "--lr-decay-style WSD"),
    ("--start-weight-decay 0.1", 1, "--start-weight-decay"),
    ("--start-weight-decay 0.1 --end-weight-decay 0.2", 1, "--weight-decay-incr-style"),
    ("--weight-decay-incr-style linear", 1, "--start-weight-decay"),
    ("--weight-decay-incr-style linear --start-weight-decay 0.2 --end-weight-decay 0.1", 1, "--end-weight-decay 0.1"),
    ("--overlap-param-gather", 1, "--overlap-param-gather"),
    ("--save somewhere", 1, "--save"),
    ("--override-opt_param-scheduler --use-checkpoint-opt_param-scheduler", 1, "--override-opt_param-scheduler"),
    ("--split 0,0,0", 1, "--split 0,0,0"),
    ("--split 1,1,1,1", 1, "--split 1,1,1,1"),
    ("--split 0,1,1", 1, "--split 0,1,1"),
    ("--data-path 0.5 a 0.5", 1, "--data-path 0.5 a 0.5"),
    ("--data-path 0.5 a -1 b", 1, "--data-path 0.5 a -1 b"),
    ("--data-path a 0.5 b 0.5", 1, "--data-path a 0.5 b 0.5"),
    ("--enable-thinking maybe", 1, "--enable-thinking maybe"),
    # precision and model
    ("--bf16 --fp16", 1, "--fp16"),
    ("--fp16-lm-cross-entropy", 1, "--fp16-lm-cross-entropy"),
    ("--fp32-residual-connection", 1, "--fp32-residual-connection"),
    ("--swiglu --squared-relu", 1, "--squared-relu"),
    ("--use-fused-rmsnorm", 1, "--use-fused-rmsnorm"),
    ("--use-fused-rotary-pos-emb", 1, "--use-fused-rotary-pos-emb"),
    ("--no-position-embedding", 1, "--no-position-embedding"),
    ("--recompute-granularity full", 1, "--recompute-granularity full"),
    ("--recompute-granularity selective --recompute-method uniform", 1, "--recompute-method uniform"),
    ("--recompute-granularity selective --recompute-num-layers 1", 1, "--recompute-num-layers 1"),
    ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 0", 1, "--recompute-num-layers 0"),
    ("--position-embedding-type rope --rotary-percent 0.2", 1, "--rotary-percent 0.2"),
    ("--multi-latent-attention --group-query-attention", 1, "--group-query-attention"),
    ("--use-rope-scaling", 1, "--rope-scaling-type llama3"),
    # refused by flag, by value, and names that are gone
    ("--fp8-format hybrid", 1, "--fp8-format"),
    ("--optimizer muon", 1, "--optimizer muon"),
    ("--transformer-impl inference_optimized", 1, "--transformer-impl inference_optimized"),
    ("--spec my.module layer", 1, "--spec my.module"),
    ("--ai-framework pytorch", 1, "--ai-framework pytorch"),
    ("--batch-size 4", 1, "--micro-batch-size"),
    # tokenizers and data
    ("--tokenizer-type GPT2BPETokenizer", 1, "--tokenizer-type GPT2BPETokenizer"),
    ("~vocab-size --tokenizer-type NullTokenizer", 1, "--vocab-size"),
    ("--data-path a --train-data-path b", 1, "--train-data-path b"),
]

GOOD = [
    ("", 1),
    ("--lr-warmup-iters 0 --lr-warmup-fraction 0.1", 1),
    ("--lr-warmup-iters 9", 1),
    ("--min-lr 1e-3", 1),
    ("--clip-grad 0", 1),
    ("--eval-iters 0", 1),
    ("--seq-length=64", 1),
    ("--seed -0 --seed 5", 1),
    ("--split 100,0,0", 1),
    ("--loss-scale 0 --fp16", 1),
    ("--data-path 0.5 a 0.5 b", 1),
    ("--data-path a b", 1),
    ("--init-method-std 0", 1),
    ("--bf16 --fp32-residual-connection", 1),
    ("--num-query-groups 8", 1),
    ("--group-query-attention --num-query-groups 2 --tensor-model-parallel-size 4", 4),
    ("--kv-channels 32 --num-attention-heads 3", 1),
    ("--sequence-parallel", 1),
    ("--fp8-margin 0", 1),
    ("--num-experts 4 --tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 2", 4),
    ("--num-experts 4 --moe-layer-freq ([0]*1+[1]*1)*2", 1),
    ("--num-layers-per-virtual-pipeline-stage 1 --pipeline-model-parallel-size 2", 2),
    ("--num-layer-list 1,3 --pipeline-model-parallel-size 2", 2),
    ("--num-layers 5 --pipeline-model-parallel-size 2", 2),
    ("--context-parallel-size 4 --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 2", 4),
    ("--swiglu --use-fused-swiglu --normalization RMSNorm --use-fused-rmsnorm", 1),
    ("--weight-decay-incr-style cosine --start-weight-decay 0.1 --end-weight-decay 0.1", 1),
    ("~train-iters --train-samples 100 --lr-warmup-samples 10 --lr-decay-samples 90", 1),
    ("--use-rotary-position-embeddings --no-position-embedding", 1),
    ("--vocab-size 500 --padded-vocab-size 512", 1),
]


@pytest.mark.parametrize("change, world_size, blamed", BAD, ids=[row[0] for row in BAD])
def test_a_bad_line_is_refused_by_a_message_that_names_the_fault(change, world_size, blamed):
    errors = reading(change.replace("stray", "--bf16 stray") if change == "stray" else change, world_size).errors
    assert any(blamed in error for error in errors), errors


@pytest.mark.parametrize("change, world_size", GOOD, ids=[row[0] for row in GOOD])
def test_a_near_miss_passes(change, world_size):
    assert reading(change, world_size).errors == []


def test_all_faults_are_said_at_once_and_none_twice():
    errors = reading("--num-layer 4 --bf16 --fp16 --lr -1 --optimizer muon --tensor-model-parallel-size 8", 8).errors
    for blamed in ("--num-layer:", "--fp16", "--lr -1", "--optimizer muon", "--num-attention-heads 4"):
        assert sum(blamed in error for error in errors) == 1, (blamed, errors)


def test_a_wrong_value_does_not_blame_the_flags_that_depend_on_it():
    assert len(reading("--hidden-size 0").errors) == 1
    assert len(reading("--tensor-model-parallel-size x", 2).errors) == 1


def test_an_abbreviation_is_refused_and_the_full_names_are_suggested():
    (error,) = reading("--num-layer 4").errors
    assert "--num-layers" in error
