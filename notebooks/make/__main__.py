"""Make the notebooks from notebooks/src, or check the committed ones. Without a name: all of them."""

import argparse
import copy
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import nbformat

from minibert.files import write_text
from notebooks.make import rules
from notebooks.make.convert import complete_notebook, exercise_notebook
from notebooks.make.execute import execute
from notebooks.make.listing import FILE, exercise_list

FOLDER = Path(__file__).resolve().parents[1]
EXERCISES = FOLDER / "exercises"


def main() -> int:
    """Report on each notebook as it is done; the exit code says whether there are problems."""
    parser = argparse.ArgumentParser(prog="python -m notebooks.make", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="how the names begin, such as 05")
    parser.add_argument(
        "--check", action="store_true", help="write nothing: run all, inspect what is committed"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="how many at a time (default: %(default)s)"
    )
    options = parser.parse_args()
    beginnings = tuple(options.names) or ""
    sources = sorted(path for path in (FOLDER / "src").glob("*.py") if path.name.startswith(beginnings))
    if not sources:
        parser.error(f"no file in notebooks/src begins with {' or '.join(options.names)}")

    count = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for report, problems in pool.map(partial(process, write=not options.check), sources):
            print(report, *problems, sep="\n    ", flush=True)
            count += len(problems)
    if options.check:
        for problem in [*strays(), *stale_list(), *dead_links()]:
            print(problem)
            count += 1
    else:
        write_text(FOLDER / FILE, exercise_list(stems()))
    print(f"{len(sources)} notebooks with their exercises, {count} problems")
    return 1 if count else 0


def process(source: Path, write: bool) -> tuple[str, list[str]]:
    """Run a notebook and its exercises, write them or inspect the files: a line of report, and problems."""
    name, text = source.stem, source.read_text(encoding="utf-8")
    try:
        complete, exercise = complete_notebook(text, name), exercise_notebook(text, name)
        seconds = execute(complete, FOLDER)
        attempt = copy.deepcopy(exercise)
        attempt_seconds = execute(attempt, EXERCISES)
    except (RuntimeError, ValueError) as error:
        return name, [str(error)]
    problems = rules.finished(complete)
    problems += [f"exercises: {problem}" for problem in rules.ran_well(attempt, "not attempted")]
    for path, made in ((FOLDER / f"{name}.ipynb", complete), (EXERCISES / f"{name}.ipynb", exercise)):
        if write:
            write_text(path, nbformat.writes(made) + "\n")
        else:
            problems += [f"{path.relative_to(FOLDER)} {problem}" for problem in rules.committed(path, made)]
    return f"{name:<28}{seconds:5.1f} s   exercises {attempt_seconds:5.1f} s", problems


def stems() -> list[str]:
    """The names of all notebooks."""
    return sorted(path.stem for path in (FOLDER / "src").glob("*.py"))


def strays() -> list[str]:
    """Notebooks that no source makes."""
    notebooks = [*FOLDER.glob("*.ipynb"), *EXERCISES.glob("*.ipynb")]
    names = stems()
    return [f"{path.relative_to(FOLDER)} has no source" for path in notebooks if path.stem not in names]


def stale_list() -> list[str]:
    """The list of exercises, if it is not what the course makes today."""
    page = FOLDER / FILE
    made = exercise_list(stems())
    return [] if page.exists() and page.read_text(encoding="utf-8") == made else [f"{FILE}: run make course"]


def dead_links() -> list[str]:
    """Links in the notebooks and READMEs that lead nowhere."""
    readmes = [FOLDER.parent / "README.md", FOLDER.parent / "benchmarks" / "README.md"]
    pages = [*FOLDER.glob("*.md"), *FOLDER.glob("*.ipynb"), *EXERCISES.glob("*.ipynb")]
    paths = [*readmes, *sorted(pages)]
    return [
        f"{path.relative_to(FOLDER.parent)} {problem}" for path in paths for problem in rules.dead_links(path)
    ]


if __name__ == "__main__":
    sys.exit(main())
