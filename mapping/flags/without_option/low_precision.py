"""Flags that are ignored or refused: 8-bit and 4-bit types, types of optimizer states."""

from mapping.flags.flag import group, ignored, refused

FLAGS = group(
    "Low precision: 8-bit and 4-bit types, types of optimizer states",
    ignored(
        "a checkpoint's 8-bit weights are widened tensor by tensor when they are read",
        "--no-stream-ckpt-dequant|--disable-stream-ckpt-dequant=off",
    ),
    ignored(
        "what this flag would compute in 8 bits is computed in the type of --bf16 or --fp16",
        "--fp8-quantizer-factory=str --fp8-output-proj",
    ),
    ignored(
        "weights are kept and gathered in the type of --bf16 or --fp16; with --fp8-simulate each product rounds them "
        "to 8 bits, which gives the same values",
        "--fp8-param-gather",
    ),
    ignored(
        "values are rounded to 8 bits anew for each product, and no rounded values are kept",
        "--keep-fp8-transpose-cache --keep-fp8-transpose-cache-when-using-custom-fsdp --fp8-reuse-quantized-weight",
    ),
    ignored("scales change in every step, and Megatron ignores this flag, too", "--fp8-interval=int:1"),
    refused(
        "products of 4 bits belong to libraries of a GPU; use --bf16, or --qat-scheme to round weights alone",
        """
        --fp4-format>fp4=str{e2m1} --fp4-recipe=str{nvfp4,custom}:nvfp4 --fp4-quantizer-factory=str --fp4-param-gather
        """,
    ),
    refused(
        "Transformer Engine and kitchen, libraries of a GPU, are not here; leave it out",
        """
        --use-kitchen-attention --kitchen-attention-backend=str{sdpa,fa}:sdpa --kitchen-config-file=str
        --kitchen-recipe-number=int --te-precision-config-file=str --te-comparison-with-cpu --te-comparison-with-bf16
        """,
    ),
    refused(
        "products of 16-bit operands are added up in float32 in any case; leave it out",
        "--disable-bf16-reduced-precision-matmul",
    ),
    refused(
        "weights are gathered in the type of --bf16 or --fp16, not in 8 bits; leave it out",
        "--reuse-grad-buf-for-mxfp8-param-ag",
    ),
    refused(
        "optimizer states and gradients are not kept in 8 bits; leave it out",
        "--quant-states=str{fp8,hif8,mxfp8} --quant-grads",
    ),
    ignored(
        "checkpoints hold the rounded weights in the weights' own type, unpacked, in any case",
        "--qlora-save-dequantize",
    ),
    ignored(
        "blocks have 32 values; only --qat-scheme w4a8-moe-only, which is refused, has another size",
        "--qat-quant-block-size=int{32,128}",
    ),
    refused(
        "queries and keys of an indexer are not rounded to 4 or 8 bits; leave it out",
        "--indexer-qk-quant-scheme=str{mxfp4,mxfp8}",
    ),
)
