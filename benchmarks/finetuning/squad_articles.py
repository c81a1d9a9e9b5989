"""``python -m benchmarks.finetuning.squad_articles FILE``: splits a SQuAD file by article.

Questions about one passage give each other away, and so do passages of one article.
"""

import argparse
import sys
from pathlib import Path

from minibert.data.tasks import Question, read_squad, split_articles
from minibert.errors import UserError
from minibert.files import write_json


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.finetuning.squad_articles", description=__doc__.split(": ")[1]
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="JSON of SQuAD, perhaps .gz")
    parser.add_argument("--test", type=int, default=8, metavar="N", help="articles to test on")
    parser.add_argument("--paragraphs", type=int, metavar="N", help="of each article only the first ones")
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="for train.json, test.json"
    )
    options = parser.parse_args()
    try:
        parts = split_articles(read_squad(options.file), options.test)
        for name, questions in zip(("train", "test"), parts, strict=True):
            write_json(options.output / f"{name}.json", as_squad(questions, options.paragraphs))
            print(f"{name}: {len({question.article for question in questions})} articles")
    except UserError as error:
        print(f"squad_articles: error: {error}", file=sys.stderr)
        return 2
    return 0


def as_squad(questions: list[Question], most: int | None = None) -> dict:
    """Questions in the layout of SQuAD v1.1; of each article no more than the first ``most`` paragraphs."""
    articles: dict[str, dict[str, list]] = {}
    for question in questions:
        asked = articles.setdefault(question.article, {}).setdefault(question.passage, [])
        answers = [  # -1: it does not stand where the file says
            {"text": answer.text, "answer_start": -1 if answer.start is None else answer.start}
            for answer in question.answers
        ]
        asked.append({"id": question.id, "question": question.text, "answers": answers})
    return {
        "version": "1.1",
        "data": [
            {
                "title": title,
                "paragraphs": [{"context": text, "qas": qas} for text, qas in list(passages.items())[:most]],
            }
            for title, passages in articles.items()
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
