"""A training run and its folder: what pre-training and fine-tuning have in common, around their steps."""

import functools
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from minibert.assets import model_folder
from minibert.devices import Device
from minibert.errors import UserError
from minibert.files import (
    check_writable,
    explain_write_errors,
    lock,
    read_json,
    remove_unfinished,
    write_json,
)
from minibert.folders.weights import BEST, FINAL, open_weights
from minibert.interrupts import sigterm_as_ctrl_c
from minibert.nn import Module
from minibert.nn.layers import Embedding
from minibert.ops import require_kernels
from minibert.precision import default_precision
from minibert.products import NUMPY, fastest_library, is_available, use_products
from minibert.ranks import ALONE, Ranks, silence
from minibert.settings import Settings
from minibert.threads import get_threads, set_threads
from minibert.train import AdamW, RunSettings, Trainer
from minibert.train.checkpoint import (
    Checkpoint,
    describe_environment,
    describe_program,
    environment_changes,
    list_checkpoints,
    save_checkpoint,
)
from minibert.train.metrics import MetricsLog, peak_memory
from minibert.train.nccl import connect
from minibert.train.optimiser import OPTIMISERS
from minibert.train.progress import format_seconds
from minibert.train.schedule import SCHEDULES

FILES = "config.json", "metrics.jsonl", "results.json", "loss.png", "training.png"  # of all kinds of runs
BEGUN = "checkpoint-*", "seed-*/checkpoint-*", "results.json"  # what --resume goes on from
LOCK = ".lock"  # the file in a run's folder that is locked while a process works there


class Run:
    """One run: its settings, with the ``options`` of its task, its device, and its folder OUT/NAME.

    with run.at_work():           the folder is ours, until the block ends or the process dies
        run.check_new(…)          or, to resume:  run.check_resumes(…)
        run.begin()
        with run.training(…):
            trainer = run.make_trainer(…)        to resume:  run.restore(trainer, …)
            run.choose_products(model)
            trainer.run()
        run.finish(…)
    """

    def __init__(
        self,
        settings: RunSettings,
        device: Device,
        options: Settings | None = None,
        ranks: Ranks | None = None,
    ):
        self.settings = settings
        self.ranks = ranks or Ranks()
        self.options = options
        self.device = device
        self.folder = settings.folder
        self.trainer: Trainer | None = None  # the last one made
        self._products: str | None = None  # the library that was chosen for them, if the settings say "auto"

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep all other runs out of the folder. Ctrl-C and SIGTERM end the block with KeyboardInterrupt.

        If there is a checkpoint by then, says how to resume. On several ranks only the first prints. Raises
        UserError if another run is at work in the folder, and if the ranks differ or cannot share a step.
        """
        locked = self._folder_locked() if self.ranks.first else nullcontext()
        with self._together(), locked, sigterm_as_ctrl_c():
            self.ranks.barrier()  # the folder is ours
            yield

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Check that all ranks do the same."""
        size, accumulation = self.ranks.size, self.settings.accumulation
        if accumulation % size:
            raise UserError(
                f"accumulation is {accumulation}, which {size} ranks cannot share equally; it counts the "
                f"micro-batches of all of them: give --accumulation {-(-accumulation // size) * size}"
            )
        if size > 1:
            self.ranks.agree(self.values() | {"resume": self.settings.resume})
            self.ranks.agree(describe_program() | {"the kind of device": self.device.name.partition(":")[0]})
            connect(self.ranks, self.device)
        with nullcontext() if self.ranks.first else silence():
            yield

    @contextmanager
    def _folder_locked(self) -> Iterator[None]:
        if os.path.isfile(self.folder):
            raise UserError(f"{self.folder} is a file; choose another --name for the run's folder")
        taken = f"another run is at work in {self.folder}; wait for it to end, or choose another --name"
        with lock(self.folder / LOCK, taken):
            try:
                yield
            except KeyboardInterrupt:
                checkpoint = self.trainer and self.trainer.checkpoint
                if checkpoint and checkpoint.exists():
                    print(f"\nstopped; to resume from {checkpoint}:\n    {self.settings.resume_command}")
                raise

    # -- Before the steps ----------------------------------------------------------------------------

    def check_new(self, *models: str | None, reads: Sequence[str | None] = ()) -> None:
        """Raise UserError if a new run cannot write to the folder, or has nothing to start from.

        ``models`` are those that it starts from and learns from, if any. It must not replace them, nor the
        other files that it ``reads``.
        """
        if not self.ranks.first:
            return
        run = self.folder
        if any(path.name != LOCK for path in run.iterdir()) and not self.settings.overwrite:
            begun = any(path for end in BEGUN for path in run.glob(end))
            resume = "resume the run in it (--resume), " if begun else ""
            raise UserError(
                f"{run} is not empty; {resume}replace what is in it (--overwrite), or choose another --name"
            )
        needed = [model for model in models if model is not None]
        for kind, path in [("model", model) for model in needed] + [("file", path) for path in reads if path]:
            if Path(path).resolve().is_relative_to(run.resolve()):
                raise UserError(
                    f"the {kind} {path} is in {run}, which would be replaced; choose another --name"
                )
        check_writable(run / "config.json")
        for model in needed:
            open_weights(model_folder(model))

    def check_resumes(self, saved: Mapping[str, Any]) -> None:
        """Raise UserError if the settings that the run was started with, ``saved``, are not those of now."""
        self.settings.check_resumes(saved, self.options)

    def values(self) -> dict[str, Any]:
        """All settings that make the run what it is, by name, as JSON can hold them."""
        return self.settings.to_dict() | (self.options.to_dict() if self.options else {})

    def prepare_machine(self) -> None:
        """Apply the settings of threads, products and kernels, and print the device and the settings."""
        settings = self.settings
        if settings.threads is not None:
            set_threads(settings.threads)
        elif self.ranks.local_size > 1:
            set_threads(max(1, get_threads() // self.ranks.local_size))
        # Until a library is chosen, NumPy's products are used, whatever an earlier run of this process chose.
        use_products(NUMPY if settings.products == "auto" else settings.products)
        require_kernels(settings.strict_kernels)
        chosen = " (chosen by auto)" if settings.device == "auto" else ""
        threads = f"{get_threads()} CPU threads"
        if self.ranks.size > 1:
            print(self._describe_ranks(), flush=True)
            threads += " on each rank"
        print(f"device: {self.device.name}{chosen}, {threads}", flush=True)
        print(f"{self._describe_settings()}\n", flush=True)

    def _describe_settings(self) -> str:
        """The settings that make this run different from others, or all of them."""
        verbose = self.settings.verbose
        told = "settings:" if verbose else "settings that differ from the defaults (all of them: --verbose):"
        options = [] if self.options is None else [self.options]
        return f"{told}\n{self.settings.describe(*options, changed_only=not verbose)}"

    def _describe_ranks(self) -> str:
        """The processes and their machines, for whoever reads that one of them has died."""
        places = self.ranks.gather((platform.node(), os.getpid()))
        told = ", ".join(
            f"{rank} is process {pid} on {machine}" for rank, (machine, pid) in enumerate(places)
        )
        return f"{self.ranks.size} ranks: {told}"

    def begin(self) -> None:
        """Write ``config.json``, and remove what a killed run was writing.

        A new run also removes what an earlier one of any kind has left: models, checkpoints, results and
        plots, and nothing else.
        """
        if not self.ranks.first:
            return
        for place in (self.folder, *self.folder.glob("seed-*")):
            remove_unfinished(place)
        if not self.settings.resume:
            models = self.folder / FINAL, self.folder / BEST
            for folder in (*models, *list_checkpoints(self.folder), *self.folder.glob("seed-*")):
                shutil.rmtree(folder, ignore_errors=True)
            with explain_write_errors(self.folder):
                for name in FILES:
                    (self.folder / name).unlink(missing_ok=True)
        write_json(self.folder / "config.json", self.values())

    # -- The steps -----------------------------------------------------------------------------------

    @contextmanager
    def training(self, needs: Callable[[], str], *ways: str) -> Iterator[None]:
        """Turn a lack of memory into a UserError that says what ``needs`` how much, and the ``ways`` out."""
        try:
            yield
        except MemoryError as error:  # CuPy's OutOfMemoryError is one
            settings = self.settings
            smaller = (
                "lower --batch-size and raise --accumulation by the same factor, for the same step in "
                "smaller pieces"
            )
            all_ways = [*ways, smaller]
            if not settings.recompute:
                all_ways.append("add --recompute")
            if settings.precision != "bfloat16" and default_precision(self.device) == "bfloat16":
                all_ways.append("use --precision bfloat16")
            raise UserError(
                f"not enough memory on {self.device.name}: {needs()} ({' '.join(str(error).split())}); "
                f"{', or '.join(all_ways)}"
            ) from None

    def make_trainer(
        self,
        model: Module,
        steps: int,
        *,
        folder: Path,
        trained_on: str,
        save_model: Callable[[Path], None],
        own_state: Callable[[int], Mapping[str, Any]],
        trainee: Any = None,
        **arguments: Any,
    ) -> Trainer:
        """A trainer of ``model`` (of ``trainee``, if that is not the model itself) as the settings say.

        Its metrics and checkpoints go to ``folder``. Besides the trainer's state, a checkpoint records the
        settings, the data that the model was ``trained_on`` (a name or a digest), and ``own_state`` of the
        step. ``arguments`` are further arguments of `Trainer`.
        """
        settings, optimiser = self.settings, make_optimiser(self.settings, model, self.ranks)

        def save(state: dict[str, Any]) -> Path:
            more = {"settings": self.values(), "trained_on": trained_on, **own_state(state["step"])}
            return save_checkpoint(folder, state | more, save_model, optimiser, settings.keep_checkpoints)

        self.trainer = Trainer(
            trainee or model,
            optimiser,
            learning_rate=learning_rates(settings, steps),
            save=save,
            metrics=MetricsLog(folder / "metrics.jsonl"),
            steps=steps,
            accumulation=settings.accumulation,
            ranks=self.ranks,
            fast_reduce=settings.fast_reduce,
            log_every=settings.log_every or (1 if self.device.name == "cpu" else 10),  # a GPU waits for it
            print_every=settings.print_every,
            **arguments,
        )
        return self.trainer

    def restore(self, trainer: Trainer, checkpoint: Checkpoint, trained_on: str, data: str) -> None:
        """Bring a new trainer, whose model is the checkpoint's, to where the checkpoint was written.

        Warns if the machine or the libraries are not the same. Raises UserError, naming ``data`` as what has
        changed, if the checkpoint was trained on something else.
        """
        self.check_trained_on(checkpoint.state["trained_on"], trained_on, checkpoint.folder, data)
        trainer.optimiser.load_state_arrays(*checkpoint.optimiser_arrays())
        trainer.restore(checkpoint.folder, checkpoint.state)
        self.go_on_in(checkpoint.state["environment"])
        print(f"resuming from {checkpoint.folder}", flush=True)

    def go_on_in(self, environment: Mapping[str, Any]) -> None:
        """Multiply with the library that an earlier part of the run used, if the settings leave it open.

        Warns if the machine or the libraries are not those of its ``environment``.
        """
        products = environment.get("products", NUMPY)
        if self.settings.products == "auto" and is_available(products):
            self._products = products  # for the same bits
            use_products(products)
        for change in environment_changes(environment, describe_environment(self.device)):
            print(f"warning: {change}; the last bits of the result may differ", file=sys.stderr)

    def check_trained_on(self, kept: str, trained_on: str, where: Path, data: str) -> None:
        """Raise UserError, naming ``data`` as what has changed, if the run was trained on something else."""
        if kept != trained_on:
            raise UserError(
                f"{where}: {data} changed since this run began; restore what was there, or start the run "
                "again with --overwrite"
            )

    def choose_products(self, model: Module) -> None:
        """Multiply with the library that is the fastest for this model, if the settings leave it open.

        It is chosen once in a run. One that was resumed goes on with the library that it began with.
        """
        if self.settings.products != "auto" or self._products is not None:
            return
        measured = self.ranks.first and self.device.name == "cpu"
        fastest = self.ranks.broadcast(fastest_library(matrix_shapes(model)) if measured else None)
        self._products = fastest or NUMPY
        use_products(self._products)
        if self._products != NUMPY:
            print(f"matrix products: {fastest}, the fastest for this model here", flush=True)

    def check_alike(self, trainer: Trainer, data: Any) -> None:
        """Raise UserError unless all ranks have the same ``data`` (a checksum of it) and the same weights."""
        self.ranks.agree({"the checksum of the training data": data})
        trainer.check_weights()

    # -- After the steps -----------------------------------------------------------------------------

    def peak_memory(self, of_graphs: int = 0) -> int | None:
        """The peak of this process in bytes, or that of one that took earlier steps of the run, if higher."""
        peaks = [peak_memory(self.device, of_graphs)]
        if (path := self.folder / "results.json").exists():
            peaks.append(read_json(path, "results file").get("peak_memory"))
        return max((peak for peak in peaks if peak is not None), default=None)

    def finish(self, results: Mapping[str, Any], lines: Sequence[str], seconds: float, tokens: int) -> None:
        """Write ``results.json``; print ``lines``, which sum it up, and the speed of the run."""
        write_json(self.folder / "results.json", results)
        memory = results["peak_memory"]
        speed = f"training {format_seconds(seconds)}, {tokens / seconds:,.0f} tokens/s"
        print("", *lines, speed + (f", peak memory {memory / 2**20:,.0f} MiB" if memory else ""), sep="\n")


def newest_checkpoint(folder: Path) -> Path | None:
    """The last checkpoint in a folder, if there is one."""
    return next(reversed(list_checkpoints(folder)), None)


def matrix_shapes(model: Module) -> list[tuple[int, int]]:
    """The shapes (N, K) of the matrices that a model's linear maps multiply by."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, Embedding)}
    return [p.shape for _, p in model.named_parameters() if len(p.shape) == 2 and id(p) not in embeddings]


def make_optimiser(settings: RunSettings, model: Module, ranks: Ranks = ALONE) -> AdamW:
    """The optimiser that the settings describe; the ``ranks`` share it out if the settings say so."""
    muon = {"matrix_rate": settings.matrix_rate, "matrix_momentum": settings.matrix_momentum}
    return OPTIMISERS[settings.optimiser](
        model,
        **(muon if settings.optimiser == "muon" else {}),
        beta1=settings.beta1,
        beta2=settings.beta2,
        eps=settings.adam_eps,
        weight_decay=settings.weight_decay,
        clip_norm=settings.clip_norm,
        bias_correction=settings.bias_correction,
        ranks=ranks if settings.shard_optimiser else ALONE,
    )


def learning_rates(settings: RunSettings, steps: int) -> Callable[[int], float]:
    """The learning rate of a run of ``steps`` steps, as a function of the step, counted from 0."""
    return functools.partial(
        SCHEDULES[settings.schedule],
        steps=steps,
        warmup=round(settings.warmup * steps),
        peak=settings.learning_rate,
    )
