"""Checkpoints of a training run: saved, saved in the background, loaded; and weights into and out of a model by
Megatron's global names."""

from pynative.checkpointing.agreement import SaveFailed
from pynative.checkpointing.load import load_adapters, load_checkpoint, load_model
from pynative.checkpointing.save import save_checkpoint
from pynative.checkpointing.state import get_checkpoint_name, get_last_checkpoint
from pynative.checkpointing.weights import gather_gradients, gather_weights, load_weights
