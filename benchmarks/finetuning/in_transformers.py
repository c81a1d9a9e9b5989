"""``python -m benchmarks.finetuning.in_transformers RUN``: the same fine-tuning run, in transformers.

RUN is the folder of a run of ``minibert finetune``. The model begins from the same weights, head and all, and
reads the same batches in the same order; learning rates, AdamW, clipping and the steps of evaluations are the
same, and predictions are made of its logits as of ours. Dropout is as strong, but draws other numbers. Writes
``transformers.json`` into RUN. For the tasks classify, regress, tag (without a CRF) and qa.
"""

import argparse
import copy
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.finetuning.page import THEIRS, write_page
from benchmarks.results import versions
from minibert.bert import BertOutput
from minibert.bert.models import PretrainedModel
from minibert.data.tasks import Faults
from minibert.errors import UserError
from minibert.files import write_json
from minibert.settings import read_settings
from minibert.tasks.finetune_settings import FinetuneSettings, split_settings
from minibert.tasks.registry import TASKS
