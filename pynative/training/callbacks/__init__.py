"""Callbacks at the events of a run."""

from pynative.training.callbacks.base import Callback, TrainingState
from pynative.training.callbacks.beside import BesideCallback
from pynative.training.callbacks.checkpoint import CheckpointCallback
from pynative.training.callbacks.evaluation import EvaluationCallback
from pynative.training.callbacks.exit import ExitCallback, SignalCallback
from pynative.training.callbacks.experts import (
    ColdHotExpertMonitor,
    MoEDropRateCallback,
    SummaryMonitor,
    expert_callbacks,
)
from pynative.training.callbacks.finite import FiniteCallback, SkippedStepsCallback
from pynative.training.callbacks.float8 import Float8Callback
from pynative.training.callbacks.gradient_norms import GradientNormsCallback
from pynative.training.callbacks.log import LogCallback
from pynative.training.callbacks.memory import MemoryCallback
from pynative.training.callbacks.metrics import MetricsCallback
from pynative.training.callbacks.profile import profile_callbacks
from pynative.training.callbacks.progress import ProgressCallback
from pynative.training.callbacks.record import RecordCallback
from pynative.training.callbacks.rollback import RollbackCallback
from pynative.training.callbacks.straggler import StragglerCallback
from pynative.training.callbacks.timings import TimingsCallback
from pynative.training.callbacks.weight_hash import WeightHashCallback
from pynative.training.callbacks.writers import WritersCallback, writers_callbacks
