"""The page in a real browser: every view is opened, and what it shows is what Python computed."""

import re
import shutil

import numpy as np
import pytest

from minibert import BertForMaskedLM, BertTokenizer
from minibert.explore.look import look
from minibert.explore.page import write_page
from minibert.explore.passes import encode

webdriver = pytest.importorskip("selenium.webdriver", reason="needs Selenium")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs Chromium and its driver (Debian: chromium chromium-driver)"
)

TEXTS = [
    "she opened the [MASK] and looked out into the garden .",
    "</script><b>[MASK]</b> 😀 שלום ${1}",
    "[MASK]",
    "the " * 125 + "[MASK]",
]
SIZES = [(1400, 900), (800, 1000), (390, 800)]
QUIET = (
    "no-sandbox disable-gpu disable-background-networking disable-component-update disable-sync no-first-run"
)


@pytest.fixture(scope="module")
def model():
    return BertForMaskedLM.from_pretrained("mini"), BertTokenizer.from_pretrained("mini")


@pytest.fixture(scope="module")
def browser(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    write_page(folder / "page.html", *model, "mini", TEXTS)
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("headless=new", f"user-data-dir={folder / 'profile'}", *QUIET.split()):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.get((folder / "page.html").as_uri())
    yield driver
    driver.quit()


@pytest.fixture(autouse=True)
def no_errors(browser):
    browser.get_log("browser")
    yield
    assert browser.get_log("browser") == []


def choose(browser, name, value):
    browser.execute_script(
        "const s = document.getElementById(arguments[0]); s.value = arguments[1];"
        "s.dispatchEvent(new Event('change'))",
        name,
        str(value),
    )


def text(browser, name):
    return browser.execute_script("return document.getElementById(arguments[0]).innerText", name)


def test_the_numbers_on_the_page_are_pythons(browser, model):
    choose(browser, "sentences", 0)
    shown, found = look(*model, encode(model[1], TEXTS[0]))
    assert f"= {found.loss:.4g}" in text(browser, "asked")
    rows = browser.execute_script(
        "return [...document.querySelectorAll('#guesses tr')].map(r => [...r.cells].map(c => c.innerText))"
    )
    for (token, percent, _), guess in zip(rows, shown["guesses"], strict=True):
        assert token == guess["token"] and float(percent[:-2]) == pytest.approx(100 * guess["p"], abs=0.5)
    for name in list(found.values)[:12]:
        held = browser.execute_script(
            "const t = data.sentences[0].tensors[arguments[0]];"
            "return [Array.from(unpack(t.value).values), Array.from(unpack(t.derivative).values)]",
            name,
        )
        np.testing.assert_allclose(held[0], found.values[name].ravel(), rtol=1e-6)
        np.testing.assert_allclose(held[1], found.derivatives[name].ravel(), rtol=1e-6)


@pytest.mark.parametrize("sentence", range(len(TEXTS)))
def test_every_view_of_every_sentence(browser, sentence):
    choose(browser, "sentences", sentence)
    depth = browser.execute_script("return river.look.maps.shape[0]")
    for kind in ("maps", "gradient", "rollout"):
        choose(browser, "kind", kind)
        for layer in range(depth):
            choose(browser, "layer", layer)
            figures = browser.execute_script("return document.querySelectorAll('#heads canvas').length")
            assert figures == (1 if kind == "rollout" else 4)
    for name in browser.execute_script(
        "return [...document.getElementById('names').options].map(o => o.value)"
    ):
        choose(browser, "names", name)
        assert "def " in text(browser, "tensor")
    choose(browser, "kind", "maps")
    browser.execute_script("layers.pair(1, 2, 0, 1, river.look.tokens, river.look.tokens)")
    assert "is a sum of 64 products" in text(browser, "pair")


def test_the_sum_of_products_is_the_score(browser):
    choose(browser, "sentences", 0)
    browser.execute_script("layers.pair(2, 1, 4, 11, river.look.tokens, river.look.tokens)")
    total, score = re.search(r"… = (\S+)\. The score is (\S+),", text(browser, "pair")).groups()
    assert float(total) == pytest.approx(float(score), rel=2e-3)


def test_the_pass_plays_forwards_and_backwards(browser):
    choose(browser, "sentences", 0)
    told = []
    for time in (0, 250, 500, 750, 1000):
        browser.execute_script(
            "const t = document.getElementById('time'); t.value = arguments[0]; t.oninput()", time
        )
        told.append(text(browser, "phase"))
    assert told[0] == "forwards: embeddings" and told[2] == "forwards: layer 3"
    assert told[-1] == "backwards: embeddings" and told[3].startswith("backwards: ")


def test_a_click_on_the_river_opens_the_value_there(browser):
    choose(browser, "sentences", 0)
    browser.execute_script(
        "const box = document.getElementById('river').getBoundingClientRect();"
        "river.click({ clientX: box.left + river.x(5), clientY: box.top + river.y(3) })"
    )
    chosen = browser.execute_script("return document.getElementById('names').value")
    assert chosen == "bert.encoder.layer.2.attention"
    assert browser.execute_script("return document.getElementById('layer').value") == "2"


@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_wider_than_the_window(browser, size):
    browser.set_window_size(*size)
    for sentence in range(len(TEXTS)):
        choose(browser, "sentences", sentence)
        wide = browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0
