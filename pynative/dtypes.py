"""numpy's name of the type that numpy itself lacks."""

import numpy as np
from mindspore.common.np_dtype import bfloat16

BFLOAT16 = np.dtype(bfloat16)
"""The type as MindSpore registers it with numpy: arrays hold it, but casts through it are slow (`rounding.py` has
others)."""
