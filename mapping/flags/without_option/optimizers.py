"""Flags that are ignored or refused: optimizers, and changes of the batch size."""

from mapping.flags.flag import group, ignored, refused, value

FLAGS = group(
    "Optimizers: other optimizers",
    refused(
        "no optimizer here has this option; leave it out",
        """
        --head-lr-mult=float:1.0
        --use-ema --ema-decay=float:0.9999 --virtual-optimizer=str+
        """,
    ),
    ignored("only which rank keeps which states changes, not the result", "--no-use-layer-wise-param-layout=off"),
    ignored("syrk is a GPU's kernel for a product that gives the same here", "--muon-use-syrk"),
    ignored(
        "the weights that the optimizer updates are float32",
        value(
            "--main-params-dtype=str{fp32,fp16}:fp32",
            refuses={"fp16": "the weights that the optimizer updates are float32; use fp32"},
        ),
    ),
    ignored(
        "beside Muon, Adam updates the parameters that are no matrices",
        value(
            "--muon-scalar-optimizer=str{adam,lion}:adam",
            refuses={"lion": "the parameters that Muon is not for are updated by Adam; use adam"},
        ),
    ),
    refused(
        "the global batch changes by --rampup-batch-size or --step-batch-size-schedule alone; use one of these",
        """
        --decrease-batch-size-if-needed --phase-transition-iterations=str
        """,
    ),
)
