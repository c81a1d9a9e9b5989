"""What every training run does before and around its steps, pre-training and fine-tuning alike."""

import functools
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from minibert.arrays import Device, get_threads, set_threads
from minibert.assets import model_folder
from minibert.bert.weights import open_weights
from minibert.errors import UserError
from minibert.files import check_writable, explain_write_errors
from minibert.nn import Module
from minibert.ops import require_kernels
from minibert.train import AdamW, RunSettings
from minibert.train.checkpoint import Checkpoint, describe_environment, environment_changes
from minibert.train.schedule import SCHEDULES


def check_folder_is_free(settings: RunSettings, model: str | None = None) -> None:
    """Raise UserError if a new run could not write to its folder, or would get in the way of what is there.

    That may be the ``model`` that it begins from.
    """
    run = settings.folder
    with explain_write_errors(run):
        occupied = run.is_dir() and any(run.iterdir())
    if run.is_file():
        raise UserError(f"{run} is a file; choose another --name for the run's folder")
    if occupied and not settings.overwrite:
        raise UserError(
            f"{run} is not empty; go on with the run in it (--resume), replace it (--overwrite), "
            "or choose another --name"
        )
    if model is not None and Path(model).resolve().is_relative_to(run.resolve()):
        raise UserError(f"the model {model} is in {run}, which would be replaced; choose another --name")
    check_writable(run / "config.json")


def check_has_weights(model: str) -> None:
    """Raise UserError if the model to begin from has no weights, or they are damaged."""
    open_weights(model_folder(model), "BertForPreTraining")


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed run was just writing."""
    for path in folder.glob(".*.part"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def prepare_machine(settings: RunSettings, device: Device) -> None:
    """Put in force what the settings say of the machine, and tell it."""
    if settings.threads is not None:
        set_threads(settings.threads)
    require_kernels(settings.strict_kernels)
    chosen = " (chosen by auto)" if settings.device == "auto" else ""
    print(f"device: {device.name}{chosen}, {get_threads()} threads for the CPU's matrix products", flush=True)


def make_optimiser(settings: RunSettings, model: Module) -> AdamW:
    """The optimiser that the settings describe."""
    return AdamW(
        model,
        beta1=settings.beta1,
        beta2=settings.beta2,
        eps=settings.adam_eps,
        weight_decay=settings.weight_decay,
        clip_norm=settings.clip_norm,
        bias_correction=settings.bias_correction,
    )


def learning_rates(settings: RunSettings, steps: int) -> Callable[[int], float]:
    """The learning rate of each of so many steps, counted from 0."""
    return functools.partial(
        SCHEDULES[settings.schedule],
        steps=steps,
        warmup=round(settings.warmup * steps),
        peak=settings.learning_rate,
    )


def report_interval(settings: RunSettings, device: Device) -> int:
    """After how many steps the losses are read: a GPU is made to wait for that less often."""
    return settings.log_every or (1 if device.name == "cpu" else 10)


def tell_resuming(checkpoint: Checkpoint, device: Device) -> None:
    """Say from where a run goes on, and what has changed around it since."""
    for change in environment_changes(checkpoint.state["environment"], describe_environment(device)):
        print(f"warning: {change}; the last bits of the result may differ", file=sys.stderr)
    print(f"resuming from {checkpoint.folder}", flush=True)


def tell_stopped(checkpoint: Path | None, settings: RunSettings) -> None:
    """Say how a run that was interrupted can go on."""
    if checkpoint is not None:
        print(f"\nstopped; to go on from {checkpoint}:\n    {settings.resume_command}")
