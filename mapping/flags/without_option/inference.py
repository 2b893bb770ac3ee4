"""Flags of inference, all refused: generation servers, generation during training, evaluation suites and the like."""

from mapping.flags.flag import group, refused

FLAGS = group(
    "Inference: generation servers and evaluation suites",
    refused(
        "generation servers are out of scope; python -m mapping generate continues texts",
        """
        --moe-pad-experts-for-cuda-graph-inference --inference-cuda-graph-scope=str{none,layer,block} --flash-decode
        --batch-invariant-mode --batch-invariant-backend=str{te_native,deepgemm,triton}:te_native
        --symmetric-ar-type=str{two_shot,one_shot,multimem_all_reduce} --nccl-all-reduce-for-prefill
        --inference-fuse-tp-communication --inference-disable-triton-nvls-kernels
        --inference-grouped-gemm-backend=str{flashinfer,torch,vllm}:vllm --inference-moe-disable-fused-quant-kernels
        --inference-moe-token-dispatcher-type=str{nccl,nvls}:nvls --inference-rng-tracker
        --inference-batch-times-seqlen-threshold=int:-1 --max-tokens-to-oom=int:12000
        --use-legacy-static-engine --inference-max-requests=int:8 --inference-max-seq-length=int:2560
        --inference-dynamic-batching --inference-dynamic-batching-buffer-size-gb=float:40.0
        --inference-dynamic-batching-paused-buffer-size-gb=float --inference-dynamic-batching-mamba-memory-ratio=float
        --inference-dynamic-batching-block-size=int:256 --inference-dynamic-batching-max-requests=int
        --inference-dynamic-batching-max-tokens=int --inference-dynamic-batching-num-cuda-graphs=int:16
        --inference-dynamic-batching-track-paused-request-events
        --inference-dynamic-batching-track-generated-token-events --decode-only-cuda-graphs
        --inference-cuda-graph-all-prefills --inference-cuda-graph-max-tokens=int:512
        --inference-dynamic-batching-unified-memory-level=int{0,1}:0 --enable-chunked-prefill
        --num-speculative-tokens=int:0
        --inference-dynamic-batching-prefix-caching>inference_dynamic_batching_enable_prefix_caching
        --no-inference-dynamic-batching-prefix-caching>inference_dynamic_batching_enable_prefix_caching=off:False
        --inference-dynamic-batching-prefix-caching-eviction-policy=str{ref_zero,lru}:ref_zero
        --inference-dynamic-batching-prefix-caching-coordinator-policy=str{longest_prefix,first_prefix_block,load_balanced}:load_balanced
        --inference-dynamic-batching-prefix-caching-routing-alpha=float:0.5
        --inference-dynamic-batching-prefix-caching-mamba-gb=float
        --inference-dynamic-batching-cuda-graph-mixed-prefill-count=int:16
        --inference-dynamic-batching-cuda-graph-sizing-distribution=str{exponential,linear}:exponential
        --inference-dynamic-batching-sampling-backend=str{torch,flashinfer}:torch
        --use-same-sampling-seed-across-dp-ranks>offset_sampling_seed_by_dp_rank=off
        --inference-dynamic-batching-async-sched-mode=str{legacy,async}:legacy
        --inference-dynamic-batching-logprobs-mode=str{raw_logprobs,processed_logprobs}:raw_logprobs
        --inference-logging-step-interval=int:0 --inference-text-gen-server-logging
        --no-inference-text-gen-server-logging=off:False --inference-wandb-logging
        --no-inference-wandb-logging=off:False --inference-coordinator-port=int
        --inference-use-synchronous-zmq-collectives --no-inference-use-synchronous-zmq-collectives=off:False
        --inference-disable-ep-consensus --no-inference-disable-ep-consensus=off:False --inference-shards=str
        --inference-dynamic-batching-cuda-graph-max-tokens=int:16384 --inference-max-batch-size=int
        --disable-chunked-prefill --inference-dynamic-batching-buffer-guaranteed-fraction=float:0.2
        --inference-dynamic-batching-buffer-overflow-factor=float --inference-dynamic-batching-max-requests-override=int
        --inference-dynamic-batching-max-tokens-override=int --inference-dynamic-batching-chunk-size=int:256
        """,
    ),
    refused("models of sentence pairs (BERT) are out of scope; leave it out", "--output-bert-embeddings"),
    refused(
        "training continues no texts; use python -m mapping generate, which has flags of its own",
        """
        --n-subs=int:1 --top-p=float:0.95;0.0 --top-k=int:50;0 --temperature=float:0.7;1.0
        --max-length=int:256
        --max-new-tokens=int:128 --greedy --text-generate-input-file=str:
        --text-generate-output-file=str: --text-generate-gt-file=str: --time --eval-dev --input-len=int:1
        --generation-length=int --out-seq-length=int:1024 --repetition_penalty=float:1.1 --repetition-penalty=float:1.2
        --prompt-path=str
        """,
    ),
    refused(
        "suites of benchmarks are out of scope; python -m mapping evaluate --task-data-path FILE.jsonl gives loss and "
        "exact matches of a file's answers",
        """
        --task=str* --task-data-path=str*:[] --evaluation-batch-size=int:1 --instruction-template=str:
        --eval-language=str{en,zh}:en --max-eval-samples=int --broadcast --alternative-prompt --origin-postprocess
        --chain-of-thought --task-list=str:all --eval-fp32 --num-fewshot=int --online-evaluation-config=str
        """,
    ),
)
