"""The numpy type of bfloat16, which numpy itself lacks."""

import numpy as np
from mindspore.common.np_dtype import bfloat16

BFLOAT16 = np.dtype(bfloat16)
"""bfloat16 as MindSpore registers it with numpy: arrays hold it, but numpy's casts from and to it are slow
(`memory/rounding.py` has faster ones)."""
