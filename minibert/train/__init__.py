"""Training: settings, optimiser, schedule, the loop, its checkpoints and its measurements."""

from minibert.train.optimiser import AdamW
from minibert.train.settings import PretrainSettings, RunSettings
from minibert.train.trainer import Trainer

__all__ = ["AdamW", "PretrainSettings", "RunSettings", "Trainer"]
