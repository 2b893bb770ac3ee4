"""Flags that are ignored or refused: other optimizers."""

from mapping.flags.flag import group, ignored, refused, value

FLAGS = group(
    "Optimizers: other optimizers",
    refused(
        "no optimizer here has it; leave it out",
        """
        --head-lr-mult=float:1.0
        --use-ema --ema-decay=float:0.9999 --virtual-optimizer=str+
        """,
    ),
    ignored("only which rank keeps which states changes, not the result", "--no-use-layer-wise-param-layout=off"),
    ignored("it is a kernel of other hardware for the same product", "--muon-use-syrk"),
    ignored(
        "the weights that the optimizer updates are float32",
        value(
            "--main-params-dtype=str{fp32,fp16}:fp32",
            refuses={"fp16": "the weights that the optimizer updates are float32; use fp32"},
        ),
    ),
    ignored(
        "Adam updates what is not a matrix",
        value(
            "--muon-scalar-optimizer=str{adam,lion}:adam",
            refuses={"lion": "the parameters that Muon is not for are updated by Adam; use adam"},
        ),
    ),
    refused(
        "the batch grows by --rampup-batch-size; use that",
        """
        --decrease-batch-size-if-needed --phase-transition-iterations=str
        """,
    ),
)
