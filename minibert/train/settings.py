"""The settings that every training run has, whatever it trains."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Self

from minibert.devices import Device
from minibert.errors import UserError
from minibert.precision import PRECISIONS, check_precision, default_precision
from minibert.products import BFLOAT16, LIBRARIES
from minibert.ranks import Ranks
from minibert.settings import Settings, as_json, setting
from minibert.train.optimiser import OPTIMISERS
from minibert.train.schedule import SCHEDULES


@dataclass(frozen=True)
class RunSettings(Settings):
    """The settings of a training run, pre-training and fine-tuning alike.

    When a run is resumed, only the settings in the groups ``FREE`` may differ from those it began with: all
    others change its result.
    """

    command: ClassVar[str]
    FREE: ClassVar[tuple[str, ...]] = ("Run", "Report", "Machine")

    name: str | None = setting(
        None,
        "Run",
        "the run's name: its files go to OUT/NAME (default: the date and what is trained, such as "
        "2026-11-25-tiny, and a number after it if there is such a run already)",
    )
    out: str = setting("runs", "Run", "folder of all runs")
    resume: bool = setting(False, "Run", "resume from the newest checkpoint in OUT/NAME")
    overwrite: bool = setting(False, "Run", "replace an earlier run in OUT/NAME")

    batch_size: int = setting(32, "Optimiser", "sequences per micro-batch", least=1, most=100_000)
    accumulation: int = setting(1, "Optimiser", "micro-batches per step, whose gradients add up", least=1)
    learning_rate: float = setting(1e-4, "Optimiser", "peak learning rate", least=0)
    warmup: float = setting(
        0.1, "Optimiser", "share of the steps in which the learning rate rises", least=0, most=1
    )
    schedule: str = setting(
        "original",
        "Optimiser",
        "how the learning rate falls after the warm-up: on a line from step 0 (original), on a line from its "
        "peak (triangle), on a line in the last two fifths of the steps (trapezoid), or as a cosine does",
        choices=tuple(SCHEDULES),
    )
    optimiser: str = setting(
        "adamw",
        "Optimiser",
        "what moves the weights: Adam (adamw), or Muon for the matrices of linear maps (not those of XLNet's "
        "attention) and Adam for the rest",
        choices=tuple(OPTIMISERS),
    )
    matrix_rate: float = setting(
        10.0, "Optimiser", "learning rate of Muon's matrices, as a multiple of LEARNING_RATE", least=0
    )
    matrix_momentum: float = setting(
        0.95, "Optimiser", "decay rate of the mean of the gradient in Muon", least=0, most=0.999999
    )
    weight_decay: float = setting(
        0.01, "Optimiser", "decoupled weight decay, except on biases and LayerNorm", least=0
    )
    clip_norm: float = setting(
        1.0, "Optimiser", "largest gradient norm; a larger gradient is scaled down to it", least=1e-12
    )
    beta1: float = setting(0.9, "Optimiser", "decay rate of the mean of the gradient", least=0, most=0.999999)
    beta2: float = setting(
        0.999, "Optimiser", "decay rate of the mean of the squared gradient", least=0, most=0.99999999
    )
    adam_eps: float = setting(
        1e-6, "Optimiser", "added to the root of the mean squared gradient", least=1e-30
    )
    bias_correction: bool = setting(
        False, "Optimiser", "correct Adam's means for their start at zero (the original BERT does not)"
    )
    seed: int = setting(
        0, "Optimiser", "random seed, for held-out data, weights, order, masks and dropout", least=0
    )
    precision: str = setting(
        "auto",
        "Optimiser",
        "precision of the arithmetic; auto is bfloat16 on a GPU that has it, else float32; on a CPU bfloat16 "
        "rounds only the factors of matrix products",
        choices=("auto", *PRECISIONS),
    )

    log_every: int | None = setting(
        None, "Report", "steps between lines of metrics.jsonl (default: 1 on the CPU, 10 on a GPU)", least=1
    )
    print_every: int = setting(
        100, "Report", "steps between printed lines where there is no progress bar", least=1
    )
    verbose: bool = setting(
        False, "Report", "print all settings at the start, not only those that differ from their defaults"
    )
    keep_checkpoints: int = setting(2, "Report", "how many of the newest checkpoints to keep", least=1)

    device: str = setting(
        "auto", "Machine", "auto, cpu, cuda (on several ranks, each takes a GPU of its own) or cuda:N"
    )
    strict_kernels: bool = setting(
        False, "Machine", "fail, instead of warning, if a GPU kernel cannot be used"
    )
    threads: int | None = setting(
        None, "Machine", "CPU threads to compute with (default: all cores)", least=1
    )
    products: str = setting(
        "auto",
        "Machine",
        "who multiplies matrices on the CPU: NumPy, or oneDNN or MKL (extras onednn, mkl); auto measures the "
        "model's own shapes when the run starts, and a resumed run goes on with what it began with; bfloat16 "
        "is oneDNN's product of rounded factors, and comes with --precision bfloat16",
        choices=("auto", *LIBRARIES),
    )
    fast_reduce: bool = setting(
        False,
        "Machine",
        "on several ranks, add gradients in the order that MPI finds fastest, not in that of one process (as "
        "GPUs always do)",
    )
    shard_optimiser: bool = setting(
        False,
        "Machine",
        "on several ranks, each keeps only its part of Adam's means, and updates only that part (ZeRO-1)",
    )
    recompute: bool = setting(
        False,
        "Machine",
        "recompute the layers in the backward pass instead of storing them: slower, less memory",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume and self.overwrite:
            raise UserError("resume and overwrite contradict each other; give one of them")
        if self.name is None and (self.resume or self.overwrite):
            what = "resume" if self.resume else "overwrite"
            raise UserError(f"{what} needs to know which run: give its --name, or --config RUN/config.json")
        if self.name in ("", "..") or (self.name and Path(self.name).name != self.name):
            raise UserError(f"name is {self.name!r}; expected the name of a folder, to be made in {self.out}")
        if self.shard_optimiser and self.optimiser != "adamw":
            raise UserError(
                f"shard_optimiser works with the optimiser adamw, not with {self.optimiser}, which moves "
                "matrices as a whole; leave one of them out"
            )

    def without_effect(self) -> dict[str, str]:
        """The settings that have no effect, given the others, and why.

        They are refused where flags give them. A file may hold them, since flags can override its others.
        """
        if self.optimiser == "muon":
            return {}
        return dict.fromkeys(
            ("matrix_rate", "matrix_momentum"), f"the optimiser is {self.optimiser}, not muon"
        )

    def as_typed(self) -> Self:
        """The settings to give for the same run again: without those that change nothing."""
        defaults = {f.name: f.default for f in fields(self)}
        in_vain = {name: defaults[name] for name in self.without_effect()}
        return self.replace(resume=False, overwrite=False, **in_vain)

    def with_name(self, kind: str, ranks: Ranks) -> Self:
        """These settings, with a name: if none was given, the date and the ``kind`` of run, not yet in use.

        All ``ranks`` get the same name, whatever the date is there.
        """
        name = ranks.broadcast(_unused_name(Path(self.out), f"{date.today()}-{kind}"))
        return self.replace(name=name) if self.name is None else self

    def with_precision_for(self, device: Device) -> Self:
        """These settings, with a precision that the device supports in place of "auto".

        On a CPU, bfloat16 decides who computes the matrix products. Raises UserError if the device does not
        support the precision that was asked for, or if the products contradict it.
        """
        name = default_precision(device) if self.precision == "auto" else self.precision
        if device.name == "cpu" and name not in ("float32", "float64", "bfloat16"):
            raise UserError(
                f"precision {name} needs a GPU; on the CPU leave out --precision, or give float32, float64 "
                "or bfloat16"
            )
        check_precision(PRECISIONS[name], device)
        rounded = device.name == "cpu" and name == "bfloat16"
        if self.products != "auto" and (self.products == BFLOAT16) != rounded:
            raise UserError(
                f"precision {name} and products {self.products} contradict each other on {device.name}; give "
                "only the precision"
            )
        return self.replace(precision=name, products=BFLOAT16 if rounded else self.products)

    @property
    def model_precision(self) -> str:
        """The precision of the model's arrays. Where only the products are in bfloat16, it is float32."""
        return "float32" if self.products == BFLOAT16 else self.precision

    def to_dict(self) -> dict[str, Any]:
        """All settings but ``resume`` and ``overwrite``, which say how to start the run, not what it is."""
        values = super().to_dict()
        del values["resume"], values["overwrite"]
        return values

    @property
    def folder(self) -> Path:
        """The run's folder, OUT/NAME. A run without a name has none yet: see ``with_name``."""
        assert self.name is not None
        return Path(self.out) / self.name

    @property
    def resume_command(self) -> str:
        """The command that resumes the run."""
        return shlex.join([*self.command.split(), "--config", str(self.folder / "config.json"), "--resume"])

    def check_resumes(self, saved: Mapping[str, Any], options: Settings | None = None) -> None:
        """Raise UserError if a run that was started with ``saved`` would be another run with these settings.

        ``saved`` are values by name, as JSON; a setting that is not among them had its default.
        ``options`` are further settings of the run, those of its task.
        """
        for settings in filter(None, (self, options)):
            for f in fields(settings):
                values = saved.get(f.name, f.default), getattr(settings, f.name)
                before, now = map(as_json, values)
                if before != now and f.metadata["group"] not in self.FREE:
                    raise UserError(
                        f"{self.folder} was started with {f.name} = {before!r}, not {now!r}; resume it with "
                        f"the settings that it was started with:  {self.resume_command}"
                    )


def _unused_name(out: Path, wanted: str) -> str:
    """``wanted``, or with -2, -3, … after it, whichever is the first that is not in the folder ``out``."""
    names = (wanted if number == 1 else f"{wanted}-{number}" for number in count(1))
    return next(name for name in names if not (out / name).exists())
