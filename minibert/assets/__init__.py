"""The models that come with the package: pretrained folders beside this file, each called by its name."""

from pathlib import Path

ASSETS = Path(__file__).resolve().parent


def model_names() -> list[str]:
    """The models that are here."""
    return sorted(path.parent.name for path in ASSETS.glob("*/config.json"))


def model_folder(name: str | Path) -> Path:
    """The folder that a person means: one on the disk or, if there is none, the model here of that name."""
    folder = Path(name)
    return ASSETS / folder if str(name) in model_names() and not folder.exists() else folder
