"""`python of_transformers.py FOLDER [FOLDER ...]`, by a Python with transformers and torch: what they read there.

Each folder has `huggingface/`, which is read, and `ids.npy`; logits go to `logits.npy`. A line of JSON for each names
the weights that were missing, or there and not expected. Nothing of this project is imported.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

for folder in map(Path, sys.argv[1:]):
    model, found = AutoModelForCausalLM.from_pretrained(
        folder / "huggingface", dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    ids = torch.from_numpy(np.load(folder / "ids.npy")).long()
    with torch.no_grad():
        np.save(folder / "logits.npy", model.eval()(ids, use_cache=False).logits.numpy())
    print(json.dumps({kind: sorted(map(str, names)) for kind, names in found.items() if names}))
