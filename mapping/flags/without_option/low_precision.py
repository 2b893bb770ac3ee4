"""Flags that are ignored or refused: 8-bit and 4-bit types, types of optimizer states."""

from mapping.flags.flag import group, ignored, refused

FLAGS = group(
    "Low precision: 8-bit and 4-bit types, types of optimizer states",
    ignored(
        "a checkpoint's 8-bit weights are widened tensor by tensor when they are read",
        "--no-stream-ckpt-dequant|--disable-stream-ckpt-dequant=off",
    ),
    ignored(
        "what it would compute in 8 bits is computed in the type of --bf16 or --fp16",
        "--fp8-quantizer-factory=str --fp8-output-proj",
    ),
    ignored(
        "weights are kept and gathered in the type of --bf16 or --fp16; a product that is to have 8 bits rounds them, "
        "which gives the same values",
        "--fp8-param-gather",
    ),
    ignored(
        "values are rounded to 8 bits for each product by itself, and none are kept",
        "--keep-fp8-transpose-cache --keep-fp8-transpose-cache-when-using-custom-fsdp --fp8-reuse-quantized-weight",
    ),
    ignored("scales follow every step, and Megatron ignores it, too", "--fp8-interval=int:1"),
    refused(
        "products of 4 bits belong to libraries of a GPU; use --bf16, or --qat-scheme to round weights alone",
        """
        --disable-bf16-reduced-precision-matmul --use-kitchen-attention --kitchen-attention-backend=str{sdpa,fa}:sdpa
        --fp4-format>fp4=str{e2m1}
        --fp4-recipe=str{nvfp4,custom}:nvfp4 --fp4-quantizer-factory=str --reuse-grad-buf-for-mxfp8-param-ag
        --fp4-param-gather --te-precision-config-file=str --kitchen-config-file=str --kitchen-recipe-number=int
        --quant-states=str{fp8,hif8,mxfp8} --quant-grads --te-comparison-with-cpu --te-comparison-with-bf16
        """,
    ),
    ignored("checkpoints hold the values of rounded weights in any case", "--qlora-save-dequantize"),
    ignored("only --qat-scheme w4a8-moe-only has blocks of another size", "--qat-quant-block-size=int{32,128}"),
    refused(
        "sparse attention with an indexer is out of scope; leave it out for full attention",
        "--indexer-qk-quant-scheme=str{mxfp4,mxfp8}",
    ),
)
