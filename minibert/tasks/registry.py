"""All tasks by name, and the way from a folder to the task that its model was fine-tuned for."""

from pathlib import Path
from typing import Any

from minibert.assets import model_folder
from minibert.errors import UserError
from minibert.files import read_json
from minibert.folders.model import PretrainedModel
from minibert.folders.weights import check_folder
from minibert.tasks.classify import Classify, Regress
from minibert.tasks.embed import stated_length
from minibert.tasks.question_answering import AnswerQuestions
from minibert.tasks.similarity import Similarity
from minibert.tasks.tag import Tag
from minibert.tasks.task import TASK_FILE, Task
from minibert.text import open_tokenizer
from minibert.variants import open_config

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (Classify, Regress, Tag, AnswerQuestions, Similarity)
}


def open_task(folder: str | Path, **options: Any) -> tuple[Task, PretrainedModel]:
    """The task and the model in a fine-tuned folder; options as for ``from_pretrained``: device, precision …

    Raises UserError for a folder that `read_task` refuses.
    """
    chosen, pairs, values = read_task(folder)
    folder = model_folder(folder)
    tokenizer = open_tokenizer(folder)
    task = chosen(tokenizer, chosen.Options.from_dict(values, str(folder / TASK_FILE)))
    task.pairs = pairs
    return task, task.open_model(folder, **options)


def read_task(folder: str | Path) -> tuple[type[Task], bool | None, dict[str, Any]]:
    """The class of a fine-tuned folder's task, whether it reads pairs (None if unknown), and its options.

    A folder of another program, without ``task.json``, is recognised by the architecture in its
    configuration; its ``max_length`` is the one that sentence-transformers would find, or the number of its
    positions. Raises UserError for any other folder.
    """
    name, folder = folder, model_folder(folder)
    check_folder(folder)
    if (folder / TASK_FILE).is_file():
        return _read_task(folder / TASK_FILE)
    chosen = next((task for task in TASKS.values() if task.recognises(folder)), None)
    if chosen is None:
        raise UserError(
            f"{name}: not a model fine-tuned for one of {', '.join(TASKS)}; make one with  "
            f"minibert finetune --model {name}"
        )
    return chosen, None, {"max_length": stated_length(folder) or open_config(folder).longest_sequence}


def _read_task(path: Path) -> tuple[type[Task], bool | None, dict[str, Any]]:
    """What a ``task.json`` says."""
    values = read_json(path, "task file")
    name = values.pop("task", None) if isinstance(values, dict) else None
    if not isinstance(name, str) or name not in TASKS:
        raise UserError(f"{path}: expected a task, one of {', '.join(TASKS)}; found {name!r}")
    pairs = values.pop("pairs", None)
    if not isinstance(pairs, bool | None):
        raise UserError(f"{path}: pairs should be true or false, found {pairs!r}")
    return TASKS[name], pairs, values
