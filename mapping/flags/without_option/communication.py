"""Flags that are ignored: communication between ranks, such as its overlap with work, its libraries, addresses."""

from mapping.flags.flag import Flag, group, ignored

FLAGS = group(
    "Communication: overlap of work and communication, and its libraries",
    ignored(
        "only the order of work and communication changes, not the result",
        """
        --use-ring-exchange-p2p
        --defer-embedding-wgrad-compute --wgrad-deferral-limit=int:0
        --overlap-p2p-communication-warmup-flush>overlap_p2p_comm_warmup_flush --high-priority-a2a-comm-stream
        --train-sync-interval=int --high-priority-stream-groups=str+:[] --create-all-gather-group
        --no-async-tensor-model-parallel-allreduce|--disable-async-tensor-model-parallel-allreduce=off --use-nanopipe
        --ampipe-degree=int:1 --ampipe-tp-sp-comm-overlap --cp-window-size=int:1 --use-cp-send-recv-overlap
        --adaptive-cp-without-coarse --use-ulysses-allgather-kv
        --optimize-send-recv-comm --optimize-vpp-send-recv-comm --use-ascend-mc2 --use-ascend-coc --coc-mode=int:-1
        --coc-parallel-num=int:1 --coc-fused-kernel --use-mc2>deprecated_use_mc2 --mla-up-proj-tp-overlap
        --async-log-allreduce
        """,
    ),
    ignored(
        "only memory and speed change",
        """
        --no-clone-scatter-output-in-embedding|--disable-clone-scatter-output-in-embedding=off
        --use-contiguous-buffers-in-ddp
        """,
    ),
    ignored(
        "only the size of the messages between pipeline stages changes, not the result",
        "--no-scatter-gather-tensors-in-pipeline=off",
    ),
    ignored(
        "it says which of MindSpeed's patches Megatron gets; nothing is patched here",
        "--optimization-level=int{0,1,2}:2",
    ),
    ignored(
        "on every pipeline stage a bucket is reduced when it is full, unless --delay-grad-reduce is given",
        "--no-delay-grad-reduce=off --no-align-grad-reduce|--disable-align-grad-reduce=off",
    ),
    ignored(
        "weights are gathered right after the update, on every pipeline stage, and waited for where they are needed",
        "--delay-param-gather --no-align-param-gather=off --overlap-param-gather-with-optimizer-step",
    ),
    ignored(
        "16-bit gradients are summed in float32 and rounded once, whatever type they are sent in",
        "--ddp-reduce-scatter-with-fp32-accumulation",
    ),
    ignored(
        "every gradient is added up in the type that --accumulate-allreduce-grads-in-fp32 and --grad-reduce-in-bf16 "
        "give, whatever its parameter's name",
        "--ddp-param-name-patterns-for-fp32-local-accumulation=str+:[]",
    ),
    ignored(
        "gradients are reduced bucket by bucket unless --no-wrap-with-ddp is given",
        Flag("--wrap-with-ddp", None, True, dest="wrap_with_ddp"),
    ),
    ignored(
        "--ddp-bucket-size says how large buckets are, and the number follows; no result changes",
        "--ddp-num-buckets=int",
    ),
    ignored(
        "this flag tunes NCCL, a library of GPUs",
        """
        --ddp-pad-buckets-for-high-nccl-busbw --nccl-communicator-config-path=str --use-sharp
        --sharp-enabled-group=str{dp,dp_replica} --use-nccl-ub>nccl_ub --disable-symmetric-registration
        """,
    ),
    ignored(
        "there are no groups of Gloo here",
        "--disable-gloo-process-groups>use_gloo_process_groups=off --disable-gloo-group",
    ),
    ignored(
        "HCCL takes its buffers and modes from its own environment variables, such as HCCL_BUFFSIZE, in MB",
        """
        --hccl-slice-size=int:10485760 --hccl-group-buffer=str --hccl-group-buffer-adaptive
        --hccl-ep-group-buffer-adaptive-factor=float:-1.0 --hccl-op-mode=str
        """,
    ),
    ignored(
        "--distributed-timeout-minutes holds for the whole run",
        "--distributed-timeout-seconds-after-init=int",
    ),
    ignored(
        "PyTorch's flight recorder is not here; ranks whose collectives differ, or that do not answer, are named",
        """
        --flight-recorder-dump-path=str
        --flight-recorder-trace-buffer-size=int:2000
        --no-flight-recorder-dump-on-timeout|--disable-flight-recorder-dump-on-timeout=off
        --flight-recorder-include-stack-trace
        --no-flight-recorder-include-only-active|--disable-flight-recorder-include-only-active=off
        --no-flight-recorder-extra-dump-on-exec|--disable-flight-recorder-extra-dump-on-exec=off
        """,
    ),
    ignored(
        "ranks take this from the environment variables of their launcher, msrun",
        """
        --local-rank=int:0 --local_rank=int --node-rank=int:0 --master-addr=str:127.0.0.1 --master-port=int:29500
        """,
    ),
    ignored("there is one implementation of data parallelism", "--DDP-impl=str{local,torch}:local"),
    ignored(
        "--collectives says which library moves the data",
        """
        --distributed-backend=str{nccl,gloo,hccl,mccl}:nccl --pipeline-model-parallel-comm-backend=str{nccl,ucc}
        """,
    ),
)
