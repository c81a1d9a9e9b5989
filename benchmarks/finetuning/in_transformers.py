"""``python -m benchmarks.finetuning.in_transformers RUN``: the same fine-tuning runs, in transformers.

RUN is the folder of a run of ``minibert finetune``. Each seed's model begins from the same weights, head and
all, and reads the same batches in the same order; learning rates, AdamW, clipping and the steps of
evaluations are the same, and predictions are made of its logits as of ours. Dropout is as strong, but draws
other numbers. Writes ``transformers.json`` into RUN. For classify, regress, tag (without a CRF) and qa.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.finetuning.figures import THEIRS
from benchmarks.results import versions
from minibert.errors import UserError
from minibert.files import write_json
from minibert.nn import Context
from minibert.settings import read_settings
from minibert.tasks.finetuning import Data, read_data
from minibert.tasks.finetuning_settings import FinetuneSettings, split_settings
from minibert.tasks.run import learning_rates

DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
LOGITS = ("logits", "start_logits", "end_logits")


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.finetuning.in_transformers", description=__doc__.split(": ")[1]
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, such as runs/finetuning/mrpc")
    parser.add_argument("--test", required=True, metavar="FILE", help="to measure the best model on")
    options = parser.parse_args()
    try:
        print(f"written to {repeat(options.run, options.test)}")
    except UserError as error:
        print(f"in_transformers: error: {error}", file=sys.stderr)
        return 2
    return 0


def repeat(run: Path, test: str) -> Path:
    """Repeat all seeds of a run, and measure the best model on ``test``; the path of what is written."""
    settings, task_options = split_settings(read_settings(run / "config.json"), str(run / "config.json"))
    check(settings, task_options)
    data = read_data(settings, task_options)
    metric = settings.metric or data.task.metric
    runs: list[dict[str, Any]] = []
    best: Repeated | None = None
    for seed in settings.seeds:
        one = Repeated(settings, data, metric, seed)
        runs.append(one.run())
        if best is None or one.best["scores"][metric] > best.best["scores"][metric]:
            best = one
    best.model.load_state_dict(best.weights)
    scores = best.scores(data.task.check(data.task.read(test)))
    write_json(run / f"{THEIRS}.json", {"runs": runs, "scores": scores, "versions": versions()})
    return run / f"{THEIRS}.json"


def check(settings: FinetuneSettings, task_options: Any) -> None:
    """Raise UserError for what is not repeated here."""
    if settings.task == "similarity" or getattr(task_options, "crf", False):
        raise UserError("transformers has no dual encoder and no CRF; name another run")
    if settings.features or settings.freeze or settings.layerwise_lr != 1 or settings.accumulation != 1:
        raise UserError("only runs in which all parameters learn, without accumulation, are repeated here")
    if settings.teacher or settings.optimiser != "adamw" or not settings.bias_correction:
        raise UserError("only runs without a teacher, with the usual AdamW, are repeated here")


class Repeated:
    """One seed of a run."""

    def __init__(self, settings: FinetuneSettings, data: Data, metric: str, seed: int):
        self.settings, self.data, self.metric, self.seed = settings, data, metric, seed
        torch.manual_seed(seed)
        dropout = {} if settings.dropout is None else dict.fromkeys(DROPOUTS, settings.dropout)
        self.ours = data.task.new_model(settings.model, seed=seed, **dropout)
        with tempfile.TemporaryDirectory() as folder:
            data.task.save(self.ours, folder)
            self.model = getattr(transformers, data.task.Model.__name__).from_pretrained(folder)
        self.ours.forward = self._forward  # from here on predictions are made of their logits
        self.best: dict[str, Any] = {}  # the best evaluation: its step and its scores
        self.weights: dict[str, torch.Tensor] = {}  # at that step

    def run(self) -> dict[str, Any]:
        """Train as the settings say; the best evaluation, and the seconds that the steps took."""
        settings, data = self.settings, self.data
        batches = data.task.batches(data.features, settings.batch_size, self.seed)
        steps, eval_every, _ = settings.intervals(batches.batches_per_epoch)
        rates, optimiser = learning_rates(settings, steps), self._optimiser()
        seconds = 0.0
        self._evaluate(0)
        for step in range(steps):
            start = time.perf_counter()
            self._step(next(batches), optimiser, rates(step))
            seconds += time.perf_counter() - start
            if (step + 1) % eval_every == 0 or step + 1 == steps:
                self._evaluate(step + 1)
        return {"seed": self.seed, **self.best, "steps": steps, "seconds": seconds}

    def scores(self, examples: Any) -> dict[str, float]:
        """Our way of scoring, on their logits."""
        self.model.eval()
        task = self.data.task
        return task.scores(examples, task.predict(self.ours, examples, self.settings.batch_size))

    def _optimiser(self) -> torch.optim.Optimizer:
        settings = self.settings
        groups = [{"params": [], "weight_decay": settings.weight_decay}, {"params": [], "weight_decay": 0.0}]
        for name, parameter in self.model.named_parameters():
            groups["bias" in name or "LayerNorm" in name]["params"].append(parameter)
        return torch.optim.AdamW(groups, betas=(settings.beta1, settings.beta2), eps=settings.adam_eps)

    def _step(self, batch: Mapping[str, np.ndarray], optimiser: torch.optim.Optimizer, rate: float) -> None:
        self.model.train()
        optimiser.zero_grad()
        self.model(**_tensors(batch)).loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.step()

    def _evaluate(self, step: int) -> None:
        """Keep the weights if they are the best so far on the dev data."""
        scores = self.scores(self.data.dev)
        print(f"seed {self.seed}, step {step}: {self.metric} {scores[self.metric]:.4f}", flush=True)
        if not self.best or scores[self.metric] > self.best["scores"][self.metric]:
            self.best = {"step": step, "scores": scores}
            self.weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def _forward(self, context: Context, **batch: np.ndarray) -> tuple[SimpleNamespace, None]:
        with torch.no_grad():
            outputs = self.model(**_tensors(batch))
        return SimpleNamespace(**{name: outputs[name].numpy() for name in LOGITS if name in outputs}), None


def _tensors(batch: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """A batch of ours as transformers takes it: ids are 64-bit integers there."""
    return {
        name: torch.from_numpy(array.astype(np.int64) if array.dtype == np.int32 else array)
        for name, array in batch.items()
    }


if __name__ == "__main__":
    sys.exit(main())
