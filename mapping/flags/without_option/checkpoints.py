"""Flags that are ignored or refused: formats, loading, storage and conversion of checkpoints."""

from mapping.flags.flag import group, ignored, refused

FLAGS = group(
    "Checkpoints: formats and conversion of checkpoints",
    ignored(
        "weights that no checkpoint gives always get their initial values",
        "--no-initialization>perform_initialization=off",
    ),
    ignored(
        "checkpoints are written and loaded in this package's own way, which has no such setting; loading compares "
        "checksums",
        """
        --auto-detect-ckpt-format --no-ckpt-fully-parallel-save=off
        --ckpt-fully-parallel-load
        --ckpt-fully-parallel-load-exchange-algo=str{broadcast,gather_rounds,gather_object}:broadcast
        --ckpt-fully-parallel-load-per-rank-objects --ckpt-fully-parallel-save-process-group=str{dp,ep_dp}:dp
        --ckpt-fully-parallel-load-process-group=str{dp,ep_dp}:dp --ckpt-assume-constant-structure
        --ckpt-pg-tensors-cache-path=str --ckpt-pg-tensors-cache-create
        --no-ckpt-load-validate-sharding-integrity|--disable-ckpt-load-validate-sharding-integrity=off
        --dist-ckpt-optim-fully-reshardable --distrib-optim-fully-reshardable-mem-efficient --verify-integrity
        --use-dist-ckpt>use_dist_ckpt_deprecated --dist-ckpt-format>dist_ckpt_format_deprecated=str
        --dist-ckpt-workers=int:1 --ckpt-fully-parallel-save>ckpt_fully_parallel_save_deprecated
        --ckpt-drop-redundant-extra-state --disable-ckpt-fully-parallel-save=off
        """,
    ),
    ignored(
        "data and checkpoints are files that the hosts see; nothing is read from object storage",
        "--object-storage-cache-path=str --enable-msc --disable-msc>disable_msc_deprecated --s3-cache-path=str",
    ),
    ignored(
        "HuggingFace's files are converted while they are read, and nothing of that is written; python -m mapping "
        "convert writes checkpoints of any tool",
        "--mg-save-dir=str --hf-cfg-dir=str",
    ),
    ignored(
        "--async-save copies and writes in a thread of the lowest priority, in host memory that is made ready while "
        "the first steps run and stays until the run ends",
        """
        --async-strategy=str{nvrx,mcore}:nvrx --use-persistent-ckpt-worker --async-ckpt-cpu-priority=int:10
        --async-ckpt-io-priority=int:3 --async-ckpt-use-cpu-shm
        """,
    ),
    refused(
        "convert checkpoints before or after training, by python -m mapping convert; leave it out",
        """
        --ckpt-convert-format=str{torch,torch_dist} --ckpt-convert-save=str
        --ckpt-convert-update-legacy-dist-opt-format --dist-ckpt-save-pre-mcore-014 --load-model-opt-format
        --only-convert-last-checkpoint --hf-save-dir=str --save-layer-by-layer
        --convert-checkpoint-from-megatron-to-transformers
        """,
    ),
    refused(
        "the optimizer's float32 copies are read with its other states, or not at all; leave it out",
        "--load-main-params-from-ckpt",
    ),
    refused("use --load and --finetune", "--pretrained-checkpoint=str --override-ckpt-iteration=int"),
    refused("a checkpoint must fit the model; convert the checkpoint first", "--load-checkpoint-loosely"),
    refused("use --use-checkpoint-opt_param-scheduler", "--use-checkpoint-lr-scheduler"),
)
