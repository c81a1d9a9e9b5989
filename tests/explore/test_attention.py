"""The view of attention alone: in a notebook, and as a page."""

import base64
import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

from minibert.bert import BertModel
from minibert.cli import main
from minibert.errors import UserError
from minibert.explore import view
from minibert.text import BertTokenizer

TEXT, OTHER = "the cat sat on the mat .", "it was <b>old</b> ."


def shown(page):
    (data,) = re.findall(r'id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(data)["attention"]


@pytest.mark.filterwarnings("ignore:.*does not use")
@pytest.mark.parametrize("second", [None, OTHER])
def test_it_holds_the_models_attention(second):
    model, tokenizer = BertModel.from_pretrained("mini"), BertTokenizer.from_pretrained("mini")
    seen = shown(view("mini", TEXT, second).html)
    batch = tokenizer([TEXT], None if second is None else [second])
    outputs, _ = model.forward(**batch, return_attentions=True)
    maps = np.frombuffer(base64.b64decode(seen["maps"]["data"]), "<f4").reshape(seen["maps"]["shape"])
    np.testing.assert_array_equal(maps, np.stack(outputs.attentions)[:, 0])
    assert seen["tokens"] == [tokenizer.tokens[i] for i in batch["input_ids"][0]]
    assert shown(view(model, TEXT, second, tokenizer=tokenizer).html) == seen


def test_a_notebook_gets_the_page_in_a_frame():
    made = view("mini", OTHER, height=333)
    (source,) = re.findall(
        r'^<iframe title="[^"]+" srcdoc="([^"]*)" style="[^"]*height: 333px', made._repr_html_()
    )
    assert html.unescape(source) == made.html


@pytest.mark.filterwarnings("ignore:.*does not use")
def test_an_encoder_needs_its_tokenizer():
    with pytest.raises(UserError, match="give the tokenizer"):
        view(BertModel.from_pretrained("mini"), TEXT)


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["view", TEXT, "--pair", OTHER]) == 0
    assert "attention.html" in capsys.readouterr().out
    assert shown(Path("attention.html").read_text(encoding="utf-8"))["tokens"].count("[SEP]") == 2
    assert main(["view", "the " * 200]) == 2
    assert "128" in capsys.readouterr().err
