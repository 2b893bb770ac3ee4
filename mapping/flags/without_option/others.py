"""Further flags that are ignored or refused, such as switches for what is always on, and old names of flags. Some
config fields follow from --spec all the same."""

from mapping.flags.flag import group, ignored, refused, value
from mapping.flags.notations import spec

FLAGS = group(
    "Others: what is always on, old names",
    ignored(
        "only the preparation of data (python -m mapping preprocess) reads this flag, not training",
        "--test-mode --handler-name=str: --output-prefix=str --workers=int:1",
    ),
    ignored("only models of sentence pairs (BERT) read this flag", "--short-seq-prob=float:0.1"),
    ignored(
        "indices of data sets are built by one thread, for as many samples as the run takes",
        "--num-dataset-builder-threads=int:1 --mid-level-dataset-surplus=float:0.005",
    ),
    ignored("no option here needs this flag", "--enable-experimental"),
    ignored(
        "Ulysses repeats keys and values in any case where there are fewer key/value groups than ranks",
        "--kv-head-repeat-before-uly-alltoall",
    ),
    ignored(
        "a norm computes in float32; its weight has the model's type, of which the optimizer updates a float32 copy",
        "--rmsnorm-weight-in-fp32 --init-norm-weight-in-fp32",
    ),
    ignored(
        "scaling is off unless --apply-query-key-layer-scaling is given",
        "--no-query-key-layer-scaling>apply_query_key_layer_scaling=off:False",
    ),
    ignored(
        "the mask follows --reset-attention-mask",
        """
        --attention-mask-type=str{causal,general}:causal
        --cp-attention-mask-type>deprecated_cp_attention_mask_type=str{causal,general}
        """,
    ),
    ignored("the framework is MindSpore", "--ai-framework=str{pytorch,mindspore}:pytorch"),
    ignored(
        "there is one implementation of Adam",
        value(
            "--optimizer-selection=str{fused_adamw,fused_torch_adamw,fused_ema_adamw}:fused_adamw",
            refuses={"fused_ema_adamw": "no averages of the weights are kept beside them; use fused_adamw"},
        ),
    ),
    ignored(
        "initial values are computed on the host in any case, the same for every layout", "--use-cpu-initialization"
    ),
    ignored(
        "every rank builds the indices that it does not find, so hosts need not share a file system",
        "--no-shared-storage",
    ),
    ignored("there is one implementation of the model", "--use-mcore-models"),
    ignored(
        "the model's flags say which layers it has, and so need no module that names them; but longcat_spec is "
        "--moe-shortcut-connected, minimax_spec --qk-norm-type per_layer, a spec of Mamba's a state space in each "
        "layer where no pattern or ratio says otherwise, and hunyuan_spec norms heads after their rotation, stretches "
        "rotary positions by alpha 1000 and lets --scale-depth act on feed-forward blocks alone",
        value("--spec=str*", type=spec),
    ),
    ignored(
        "the model's flags say which layers the depths of multi-token prediction have",
        value("--mtp-spec=str*", type=spec),
    ),
    refused(
        "this flag belongs to Pai-Megatron-Patch; use Megatron's flag for the same, if there is one",
        """
        --intermediate-size=int --keep-last --use-normhead --source-seq-len=int --target-seq-len=int
        --z-loss-weight=float:0.0 --rotary-scale-factor=int:1 --router-type=str{topk,expert_choice}:topk
        --disable-bias-linear-fc>add_bias_linear_fc=off --disable-bias-attn-fc>add_bias_attn_fc=off
        --disable-parallel-output>enable_parallel_output=off
        """,
    ),
    refused("use --micro-batch-size", "--batch-size=int"),
    refused("use --lr-warmup-fraction", "--warmup=int"),
    refused("use --tensor-model-parallel-size", "--model-parallel-size=int"),
    refused("use --norm-epsilon", "--layernorm-epsilon=float:1e-05"),
    refused("use --override-opt_param-scheduler", "--override-lr-scheduler"),
)
