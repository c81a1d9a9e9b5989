"""Flags made from the settings of a run or a task, and --config for a file of settings."""

import argparse
import typing
from collections.abc import Collection, Mapping
from dataclasses import Field
from pathlib import Path
from types import NoneType
from typing import Any

from minibert.errors import UserError
from minibert.settings import Settings, flag_of, read_settings
from minibert.tasks.pretraining_recipes import PRETRAINING_RECIPES
from minibert.tasks.pretraining_settings import INITIALIZERS, PretrainSettings
from minibert.tasks.run import BEGUN
from minibert.train import RunSettings
from minibert.variants import FAMILIES


def add_setting_flags(
    parser: argparse.ArgumentParser,
    *kinds: type[Settings],
    names: Collection[str] | None = None,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Add a flag for each setting of these kinds (or for those named), and --config for a file of settings.

    Only flags that are given get a value, so that the others do not hide what the file says. ``notes``, by
    the setting's name, are added to the help texts.
    """
    parser.usage = f"{parser.prog} [--config FILE] [flags]"
    parser.add_argument("--config", metavar="FILE", help="file of settings, TOML or JSON; flags override it")
    sections: dict[str, Any] = {}
    added: set[str] = set()
    for kind in kinds:
        types = typing.get_type_hints(kind)
        for group, members in kind.groups().items():
            for f in members:
                if f.name not in added and (names is None or f.name in names):
                    if group not in sections:
                        sections[group] = parser.add_argument_group(group.lower())
                    options = flag_options(f, types[f.name])
                    options["help"] += (notes or {}).get(f.name, "")
                    sections[group].add_argument(
                        flag_of(f), dest=f.name, default=argparse.SUPPRESS, **options
                    )
                    added.add(f.name)
    parser.set_defaults(settings=added)


def flag_options(f: Field, annotation: Any) -> dict[str, Any]:
    """How argparse reads and explains one setting. The settings themselves check limits and choices."""
    help = f.metadata["help"].replace("%", "%%")
    if "choices" in f.metadata:
        help += f": {', '.join(f.metadata['choices'])}"
    if f.default not in (None, ()):
        default = {True: "yes", False: "no"}[f.default] if isinstance(f.default, bool) else f.default
        default = " ".join(map(str, default)) if isinstance(default, tuple) else default
        help += f" (default: {default})"
    # X of X, X | None and tuple[X, ...]
    (kind,) = set(typing.get_args(annotation) or [annotation]) - {NoneType, ...}
    if kind is bool:
        return {"help": help, "action": argparse.BooleanOptionalAction}
    if typing.get_origin(annotation) is tuple:
        return {"help": help, "nargs": "+", "type": kind, "metavar": "PATH" if kind is str else "N"}
    metavar = flag_of(f).removeprefix("--").replace("-", "_").upper()
    return {"help": help, "type": kind, "metavar": metavar}


def add_recipe_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag that names a set of pre-training settings."""
    parser.add_argument(
        "--recipe",
        choices=tuple(PRETRAINING_RECIPES),
        help="settings to begin with, which the file and the flags override: the decisions of the original "
        "BERT, or those with which a small one learns fastest (default: original)",
    )


def pretrain_settings(flags: argparse.Namespace) -> PretrainSettings:
    """The pre-training settings that a command line gives."""
    given = given_settings(flags)
    in_file = given.pop("recipe", "original")
    recipe = getattr(flags, "recipe", None) or in_file
    if recipe not in tuple(PRETRAINING_RECIPES):  # a list, say, has no hash
        known = ", ".join(PRETRAINING_RECIPES)
        raise UserError(f"{flags.config}: recipe must be one of {known}, got {recipe!r}")
    values = dict(PRETRAINING_RECIPES[recipe])
    if given.get("model"):
        values = {name: value for name, value in values.items() if name not in INITIALIZERS}  # of new models
    family = FAMILIES.get(str(given.get("variant")))
    if family and not family.position_table and given.get("positions") != "learned":
        values.pop("attention_initializer", None)  # heads find their neighbours in the table of positions
    return PretrainSettings.from_dict(values | given, flags.config or "settings")


def check_effects(flags: argparse.Namespace, settings: RunSettings) -> None:
    """Raise UserError for a flag that changes nothing, and if a run that is to be resumed is not here.

    A resumed run may repeat the flags that it began with. Its paths are relative to where it was started.
    """
    if not settings.resume:
        settings.refuse({name: why for name, why in settings.without_effect().items() if name in flags})
        return
    of_a_run = flags.config and Path(flags.config).name == "config.json"
    if of_a_run and not (settings.folder / "config.json").exists():
        raise UserError(
            f"{flags.config}: these are the settings of the run {settings.folder}, which is not here; "
            "resume it in the folder in which it was started"
        )
    chosen = "name" in flags or "out" in flags
    here = Path(flags.config).parent if of_a_run and not chosen else settings.folder
    if here.resolve() != settings.folder.resolve() and any(path for end in BEGUN for path in here.glob(end)):
        raise UserError(
            f"{flags.config}: in a copy of the run {settings.folder}; to resume the copy, say where it is "
            "(--out, --name)"
        )


def given_settings(flags: argparse.Namespace) -> dict[str, Any]:
    """The values of the --config file, overridden by those of the flags that were given."""
    given = {name: value for name, value in vars(flags).items() if name in flags.settings}
    return (read_settings(flags.config) if flags.config else {}) | given
