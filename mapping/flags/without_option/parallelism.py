"""Flags that are ignored or refused: parallelism, such as other ways to split the work."""

from mapping.flags.flag import group, ignored, refused, value

FLAGS = group(
    "Parallelism: other ways to split the work",
    ignored(
        "only memory and the order of communication change: a weight is gathered before it is used in any case",
        """
        --init-model-with-meta-device --megatron-fsdp-version=int{1,2}:1 --fsdp-manual-registration
        --outer-dp-sharding-strategy=str{no_shard,optim}:no_shard --fsdp-double-buffer
        --suggested-communication-unit-size=int --enable-full-sharding-in-hsdp
        --torch-fsdp2-no-reshard-after-forward>torch_fsdp2_reshard_after_forward=off
        --megatron-fsdp-enable-fine-grained-param-gather --megatron-fsdp-max-pool-double-buffer
        --fsdp-db-use-persist-buf-on-alloc-fail
        """,
    ),
    ignored(
        "weights are kept, and gradients added up, in float32",
        value(
            "--megatron-fsdp-main-params-dtype=str{fp32,bf16,fp16,auto}:fp32",
            refuses=dict.fromkeys(("bf16", "fp16", "auto"), "weights are kept in float32; use fp32"),
        ),
        value(
            "--megatron-fsdp-main-grads-dtype=str{fp32,bf16,fp16,auto}:auto",
            refuses=dict.fromkeys(("bf16", "fp16"), "gradients are added up in float32; use fp32"),
        ),
    ),
    refused(
        "this form of sharding is not there; use --use-distributed-optimizer or --zero-stage",
        "--layerzero --layerzero-config=str --distributed-optimizer-no-replica",
    ),
    refused(
        "a checkpoint must fit the model; convert the checkpoint first",
        "--no-strict-fsdp-dtensor-load|--disable-strict-fsdp-dtensor-load=off",
    ),
    refused(
        "a weight has as many parts as --tensor-model-parallel-size; --zero-stage 3 shares it over replicas too",
        "--tensor-parallel-num-weight-shards=int",
    ),
    refused(
        "context parallelism is ring, ulysses or hybrid; use --context-parallel-algo",
        """
        --max-seqlen-per-dp-cp-rank=int --adaptive-seq-len
        """,
    ),
    refused("attention's tensors have one order of axes, [s, b, n, d]; leave it out", "--megatron-cp-in-bnsd"),
    refused(
        "masks follow from documents and windows, not from a list that a program sets; leave it out",
        "--adaptive-cp-manually-set-mask-list",
    ),
    ignored(
        "ring attention skips what a mask hides by itself",
        "--adaptive-cp-dynamic-attn-mask --adaptive-cp-only-reschedule",
    ),
    refused("data-parallel copies of a model must start equal; leave it out", "--data-parallel-random-init"),
    ignored(
        "DualPipe-V always puts off gradients of weights while the pipeline drains, as DeepSeek's schedule does",
        "--dualpipev-dw-detach",
    ),
    ignored(
        "no step is timed: the schedule is made once, with the times of --plan-device's plan, else with equal times",
        "--zero-bubble-pipeline-timers-start-iter=int:100 --zero-bubble-pipeline-timers-end-iter=int:110",
    ),
    ignored(
        "a stage of zb-1p keeps as many activations as there are stages, and of --pipeline-schedule zb-2p twice as "
        "many, whatever memory is free",
        "--zero-bubble-adaptive-memory-limit-percentile=int:85",
    ),
    ignored(
        "one runner executes every schedule, and an update waits until all ranks know of overflows and norms: the "
        "result is the same",
        """
        --enable-zb-runtime --no-pre-communication-optimization=off --enable-optimizer-post-validation
        --enable-exactly-numeric-match
        """,
    ),
    refused(
        "process groups are made when a run starts, not by the script; leave it out",
        "--lazy-mpu-init",
    ),
    refused(
        "the model says which tensors its pipeline stages send each other; leave it out",
        "--use-multiparameter-pipeline-model-parallel",
    ),
    refused(
        "this way to plan a pipeline is not there; use --pipeline-schedule, virtual stages or --num-layer-list",
        """
        --automated-pipeline --automated-pipeline-perf
        --enable-1f1b-v --optimized-mbs-list=str --mbs-idx=int --pp-schedule-list=str --optimized-mbs-mode=off
        --layerwise-disaggregated-training --dist-train
        """,
    ),
    ignored(
        "weights are cut along one dimension over the same --tensor-model-parallel-size ranks: the result is the same, "
        "the messages are those of one dimension",
        """
        --use-nd-matmul --nd1-dim1-size=int:1 --nd2-dim1-size=int:1 --tp-2d --tp-x=int:1 --tp-y=int:1
        """,
    ),
    ignored(
        "only the order of work in two-dimensional tensor parallelism changes, not the result",
        """
        --enable-overlap-ag-with-matmul --enable-overlap-matmul-with-rs --enable-backward-overlap-ag-with-matmul
        """,
    ),
    refused(
        "no layout is chosen by itself; give the parallel sizes, which python -m mapping plan --suggest finds",
        """
        --auto-settings --auto-settings-work-dir=str --auto-settings-ranks=int:8 --auto-settings-log-level=str:info
        --target-nnodes=int:1 --auto-settings-type=str:mixed --prof-file=str
        --auto-parallel --profile-operator --auto-parallel-mm --auto-parallel-profile
        """,
    ),
    refused(
        "the launcher starts the processes; give it their number, msrun by --worker_num and --local_worker_num",
        "--nnodes=int:1 --nproc-per-node=int:1",
    ),
)
