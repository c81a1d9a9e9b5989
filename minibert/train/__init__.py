"""Training: settings, optimiser, schedule, the loop, its checkpoints and its measurements. Knows no task."""

from minibert.train.optimiser import AdamW, Muon
from minibert.train.settings import RunSettings
from minibert.train.trainer import Trainer

__all__ = ["AdamW", "Muon", "RunSettings", "Trainer"]
