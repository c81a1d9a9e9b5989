"""The page in a real browser: every view is opened, and what it shows is what Python computed."""

import contextlib
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from minibert.bert import BertConfig, BertForPreTraining
from minibert.explore import view
from minibert.explore.layers import residuals
from minibert.explore.look import look, words
from minibert.explore.page import page
from minibert.explore.subjects import open_subject
from minibert.heads import BertForSequenceClassification
from minibert.text import BertTokenizer

WebDriverWait = pytest.importorskip("selenium.webdriver.support.wait", reason="needs Selenium").WebDriverWait
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
CAPITAL = "the capital of france is [MASK] ."
SLOW = (
    "const send = window.fetch; window.fetch = async (address, request) => {"
    "  if (address === '/look') await new Promise(done => setTimeout(done, 500));"
    "  return send(address, request); };"
)
LENGTH = "return river.look.tokens.length"
SIZES = [(1400, 900), (800, 1000), (390, 800)]


@pytest.fixture(scope="module")
def subject():
    return open_subject("mini")


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    from benchmarks.explorer import open_browser  # needs Selenium

    driver = open_browser(tmp_path_factory.mktemp("browser"))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page_address(subject, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page(subject, "mini", [(text, None) for text in TEXTS]), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def browser(window, page_address):
    """The offline page. At the end, nothing must have gone wrong in it."""
    if window.current_url != page_address:
        window.get(page_address)
    yield window
    assert window.get_log("browser") == []


def leave(window):
    """Go from a page whose server ends, or it may still ask for something."""
    window.get("about:blank")


@contextlib.contextmanager
def serving(*arguments):
    """The address of a page with the model behind it."""
    pytest.importorskip("tornado", reason="needs Tornado")
    command = [sys.executable, "-m", "minibert", "explore", *arguments, "--no-browser", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            yield server.stdout.readline().split()[1]
            server.send_signal(signal.SIGINT)
            assert server.wait(30) == 130
        finally:
            server.kill()  # whatever has gone wrong, or the tests would wait for it for ever


@pytest.fixture(scope="module")
def address():
    with serving(TEXTS[0]) as found:
        yield found


@pytest.fixture
def live(window, address):
    """The page with the model behind it, with its first answer."""
    window.get(address)
    wait(window, lambda: text(window, "asked") and not busy(window))
    yield window
    assert window.get_log("browser") == []


def wait(browser, condition):
    """Until it is true, or two minutes have passed: other tests compute at the same time."""
    WebDriverWait(browser, 120, poll_frequency=0.05).until(lambda _: condition())


def choose(browser, name, value):
    browser.execute_script(
        "const s = document.getElementById(arguments[0]); s.value = arguments[1];"
        "s.dispatchEvent(new Event('change'))",
        name,
        str(value),
    )


def text(browser, name):
    return browser.execute_script("return document.getElementById(arguments[0]).innerText", name)


def fits(browser):
    """Is nothing wider than the window?"""
    return browser.execute_script(
        "const {scrollWidth, clientWidth} = document.documentElement;return scrollWidth <= clientWidth"
    )


def ask(browser, typed):
    browser.execute_script(
        "document.getElementById('text').value = arguments[0];document.getElementById('ask').requestSubmit()",
        typed,
    )


def busy(browser):
    """Does it still ask which words led to the answer?"""
    return browser.execute_script("return document.getElementById('words').ariaBusy !== 'false'")


def test_the_numbers_on_the_page_are_pythons(browser, subject):
    choose(browser, "sentences", 0)
    shown, found = look(subject, subject.encode(TEXTS[0]))
    assert f"= {found.loss:.4g}" in text(browser, "asked")
    rows = browser.execute_script(
        "return [...document.querySelectorAll('#guesses tr')].map(r => [...r.cells].map(c => c.innerText))"
    )
    for (token, percent, _), guess in zip(rows, shown["guesses"], strict=True):
        rounding = 0.501 if guess["p"] >= 0.0995 else 0.0501  # one decimal below 9.95 %
        assert token == guess["token"] and abs(float(percent[:-2]) - 100 * guess["p"]) <= rounding
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
        label = browser.execute_script("return document.querySelector('#tensor canvas').ariaLabel")
        assert label.startswith(f"{name}: ")
    choose(browser, "kind", "maps")
    choose(browser, "form", "arcs")
    assert browser.execute_script("return document.querySelectorAll('#heads canvas').length") == 4
    choose(browser, "form", "matrix")
    browser.execute_script("layers.pair(1, 2, 0, 1, river.look.tokens, river.look.tokens)")
    assert "is a sum of 64 products" in text(browser, "pair")


def test_the_sum_of_products_is_the_score(browser):
    choose(browser, "sentences", 0)
    browser.execute_script("layers.pair(2, 1, 4, 11, river.look.tokens, river.look.tokens)")
    total, score = re.search(r"… = (\S+)\. The score is (\S+),", text(browser, "pair")).groups()
    assert float(total) == pytest.approx(float(score), rel=2e-3)


@pytest.mark.parametrize("width", [1000, 1600, 390])
def test_a_click_opens_the_square_that_is_under_it(browser, width):
    browser.set_window_size(width, 900)
    choose(browser, "sentences", 0)
    choose(browser, "kind", "maps")
    choose(browser, "form", "matrix")
    for query, key in ((4, 11), (0, 0), (12, 12)):
        browser.execute_script(
            "const canvas = document.querySelector('#heads canvas'), box = canvas.getBoundingClientRect();"
            "const [query, key] = arguments, drawn = parseFloat(canvas.style.width);"
            "const size = (drawn - 76) / 13;"
            "canvas.dispatchEvent(new MouseEvent('click', {"
            "  clientX: box.left + (74 + size * (key + 0.5)) * box.width / drawn,"
            "  clientY: box.top + 62 + size * (query + 0.5) }))",
            query,
            key,
        )
        tokens = browser.execute_script("return river.look.tokens")
        told = f"{tokens[query]} (the query) attends to {tokens[key]} (the key)"
        wait(browser, lambda told=told: told in text(browser, "pair"))


def test_a_pair_that_comes_late_is_not_shown_below_another_layer(browser):
    choose(browser, "sentences", 0)
    browser.execute_script(
        "const tokens = river.look.tokens; window.late = layers.pair(1, 0, 4, 3, tokens, tokens)"
        ".then(() => { window.arrived = true; });"
        "const s = document.getElementById('layer'); s.value = 2; s.dispatchEvent(new Event('change'))"
    )
    wait(browser, lambda: browser.execute_script("return window.arrived"))
    assert "Layer 1" not in text(browser, "pair") and "A row is a query" in text(browser, "pair")


def test_a_hand_on_the_slider_stops_the_play(browser):
    browser.execute_script(
        "document.getElementById('time').value = 0; document.getElementById('play').click()"
    )
    browser.execute_script("const t = document.getElementById('time'); t.value = 900; t.oninput()")
    assert (
        browser.execute_script(
            "return new Promise(done => setTimeout(() => done(document.getElementById('time').value), 200))"
        )
        == "900"
    )
    assert browser.execute_script("return document.getElementById('play').ariaLabel") == "play the pass"


def test_what_one_token_takes_from_another(browser, subject):
    choose(browser, "sentences", 0)
    browser.execute_script("layers.pair(2, 1, 4, 3, river.look.tokens, river.look.tokens)")
    one, all_tokens = re.search(
        r"a vector of length (\S+); .* has length (\S+)\.$", text(browser, "pair")
    ).groups()
    shown, found = look(subject, subject.encode(TEXTS[0]))
    share = found.values["bert.encoder.layer.2.attention.self.probabilities"][1, 4, 3]
    assert float(one) == pytest.approx(share * shown["offered"][2][1][3], rel=1e-3)
    assert float(all_tokens) == pytest.approx(shown["written"][2][1][4], rel=1e-3)


def test_the_most_active_units(browser, subject):
    choose(browser, "sentences", 0)
    name = "bert.encoder.layer.1.intermediate"
    choose(browser, "names", name)
    _, found = look(subject, subject.encode(TEXTS[0]))
    unit = np.abs(found.values[name][4]).argmax()
    value = found.values[name][4, unit]
    assert re.search(rf"the largest at token.* {unit}: {value:.4g}", text(browser, "tensor"), re.DOTALL)


def test_the_pass_plays_forwards_and_backwards(browser):
    choose(browser, "sentences", 0)
    told = []
    for time in (0, 250, 500, 750, 1000):
        browser.execute_script(
            "const t = document.getElementById('time'); t.value = arguments[0]; t.oninput()", time
        )
        told.append(text(browser, "phase"))
    assert told[0] == "forward pass: embeddings" and told[2] == "forward pass: layer 3"
    assert told[-1] == "backward pass: embeddings" and told[3].startswith("backward pass: ")


def test_a_click_on_the_river_opens_the_value_there(browser):
    choose(browser, "sentences", 0)
    browser.execute_script(
        "const box = document.getElementById('river').getBoundingClientRect();"
        "river.click({ clientX: box.left + river.x(5), clientY: box.top + river.y(3) })"
    )
    chosen = browser.execute_script("return document.getElementById('names').value")
    assert chosen == "bert.encoder.layer.2.attention"
    assert browser.execute_script("return document.getElementById('layer').value") == "2"


def test_both_halves_of_a_layer(browser, subject):
    choose(browser, "sentences", 0)
    choose(browser, "layer", 2)
    _, found = look(subject, subject.encode(TEXTS[0]))
    attention, wide = residuals(subject, found)[2]
    rows = browser.execute_script(
        "return [...document.querySelectorAll('#halves-table tr')].slice(1)"
        ".map(r => [...r.cells].map(c => c.innerText))"
    )
    for token, (name, *cells) in enumerate(rows):
        assert name == found.sentence.tokens[token]
        expected = [np.linalg.norm(found.values[attention.before][token])]
        for half in (attention, wide):
            lengths = np.linalg.norm(half.added[token]), np.linalg.norm(found.values[half.after][token])
            expected += [lengths[0], half.cosine[token], half.deviation[token], lengths[1]]
        assert [float(c) for c in cells] == pytest.approx(expected, abs=0.006)
    wait(browser, lambda: "Point at a feature" in text(browser, "halves-strips"))
    browser.execute_script(
        "const c = document.querySelector('#halves-strips canvas'), box = c.getBoundingClientRect();"
        "c.dispatchEvent(new MouseEvent('mousemove', { clientX: box.left + 120, clientY: box.top + 10 }))"
    )
    pattern = r"feature (\d+): (\S+) \+ (\S+) = (\S+) →"
    feature, before, added, total = re.search(pattern, text(browser, "halves-strips")).groups()
    assert float(before) == pytest.approx(found.values[attention.before][4, int(feature)], rel=1e-3)
    assert float(before) + float(added) == pytest.approx(float(total), abs=2e-3)


def test_the_arrow_keys_move_the_slider(browser):
    choose(browser, "sentences", 0)
    river = browser.find_element("css selector", "#river")
    at = "return [Number(document.getElementById('time').value), document.getElementById('phase').innerText]"
    river.send_keys("\ue011")  # Home
    assert browser.execute_script(at) == [0, "forward pass: embeddings"]
    river.send_keys("\ue014" * 10)  # to the right
    assert browser.execute_script(at)[0] == 200
    river.send_keys("\ue012")  # to the left
    assert browser.execute_script(at)[0] == 180


def test_the_offline_page_says_that_nothing_can_be_changed(browser):
    assert "There is no model behind this page" in text(browser, "offline")
    assert not browser.find_element("css selector", "#live").is_displayed()


def test_the_offline_page_requests_nothing(browser):
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_wider_than_the_window(browser, size):
    browser.set_window_size(*size)
    for sentence in range(len(TEXTS)):
        choose(browser, "sentences", sentence)
        assert fits(browser)


def test_attention_alone(window, tmp_path):
    (tmp_path / "attention.html").write_text(view("mini", TEXTS[0]).html, encoding="utf-8")
    window.get((tmp_path / "attention.html").as_uri())
    shown = (
        "return [...document.querySelectorAll('main > section')].filter(s => !s.hidden).map(s => s.innerText)"
    )
    (section,) = window.execute_script(shown)
    assert "head 3" in section and "gradient" not in section
    for form in ("matrix", "arcs"):
        choose(window, "form", form)
        assert window.execute_script("return document.querySelectorAll('#heads canvas').length") == 4
    assert window.get_log("browser") == []


# -- With the model behind it ------------------------------------------------------------------------------


def loss_of(browser):
    return float(text(browser, "asked").split("= ")[1])


def test_the_live_page_shows_the_same_numbers(live):
    subject = open_subject("mini", dtype="float64")
    _, found = look(subject, subject.encode(TEXTS[0]))
    assert f"= {found.loss:.4g}" in text(live, "asked")


@pytest.mark.parametrize("size", SIZES)
def test_nothing_of_the_live_page_is_wider_than_the_window(live, size):
    live.set_window_size(*size)
    for kind in ("taken", "gradient", "rollout", "maps"):
        choose(live, "kind", kind)
        assert fits(live)


def test_the_words_come_one_after_the_other(live):
    live.execute_script(
        "document.getElementById('words').ariaBusy = 'true';"
        "document.getElementById('text').value = arguments[0];"
        "document.getElementById('ask').requestSubmit()",
        "the cat sat down . " * 9 + "[MASK]",  # more than are asked for at once
    )
    wait(live, lambda: live.execute_script("return river.look.tokens.length") == 48 and not busy(live))
    subject = open_subject("mini", dtype="float64")
    _, found = look(subject, subject.encode("the cat sat down . " * 9 + "[MASK]"))
    for row, expected in zip(
        live.execute_script("return layers.shown.words"), words(subject, found), strict=True
    ):
        assert row["name"] == expected["name"]
        assert row["values"] == [None if v is None else pytest.approx(v) for v in expected["values"]]


def test_the_longest_text_that_a_bert_reads(window, tmp_path):
    tokenizer = BertTokenizer.from_pretrained("mini")
    sizes = {"hidden_size": 16, "num_attention_heads": 1, "intermediate_size": 32}
    config = BertConfig.preset("tiny", vocab_size=len(tokenizer), max_position_embeddings=512, **sizes)
    BertForPreTraining(config, seed=1).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with serving("the " * 509 + "[MASK]", "--model", str(tmp_path)) as found:
        window.get(found)
        wait(window, lambda: text(window, "asked"))
        assert window.execute_script("return river.look.tokens.length") == 512
        assert text(window, "trouble") == "" and window.get_log("browser") == []
        leave(window)


def test_an_answer_is_asked_for_where_there_are_some_to_choose_from(window, live, tmp_path):
    shown = "return document.getElementById('answer').checkVisibility()"
    assert window.execute_script(shown)
    tokenizer = BertTokenizer.from_pretrained("mini")
    sizes = {"hidden_size": 16, "num_attention_heads": 1, "intermediate_size": 32, "num_labels": 1}
    config = BertConfig.preset("tiny", vocab_size=len(tokenizer), **sizes)
    BertForSequenceClassification(config, seed=1).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with serving("it is a fine film", "--model", str(tmp_path)) as found:
        window.get(found)
        wait(window, lambda: text(window, "asked") and not busy(window))
        assert "the number that it gives" in text(window, "asked")
        assert not window.execute_script(shown)
        leave(window)


def test_a_page_whose_server_has_ended_says_so(window):
    with serving(TEXTS[0]) as found:
        window.get(found)
        wait(window, lambda: text(window, "asked") and not busy(window))
    choose(window, "names", "bert.encoder.layer.1")
    wait(window, lambda: "minibert explore does not answer any more" in text(window, "trouble"))
    leave(window)
    assert window.get_log("browser")  # that nobody has answered: nothing that later tests should find


def test_it_requests_nothing_but_answers_from_its_own_server(live, address):
    names = live.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    own = address.split("?")[0]
    assert {name.removeprefix(own) for name in names} == {"look", "tensor", "words"}


def test_a_click_on_a_parameter_shows_it_and_its_gradient(live):
    choose(live, "names", "bert.encoder.layer.2.attention")
    wait(live, lambda: "Parameters that took part" in text(live, "tensor"))
    live.execute_script("document.querySelector('#tensor .parameters button').click()")
    wait(live, lambda: "the longest gradients" in text(live, "tensor"))
    chosen = live.execute_script("return document.getElementById('names').value")
    assert chosen == "bert.encoder.layer.2.attention.output.dense.weight"
    assert "256 × 256: the 24 rows" in text(live, "tensor")
    live.find_element("css selector", "#tensor canvas").click()
    wait(live, lambda: "numeric" in text(live, "tensor"))
    by_hand, numeric = re.search(r"by hand (\S+), numeric (\S+)", text(live, "tensor")).groups()
    assert float(by_hand) == pytest.approx(float(numeric), rel=1e-4, abs=1e-9)


def test_two_texts_are_asked_whether_one_follows_the_other(live):
    live.execute_script(
        "document.getElementById('text').value = 'she opened the door .';"
        "document.getElementById('second').value = 'then she went out .';"
        "document.getElementById('ask').requestSubmit()"
    )
    wait(live, lambda: re.search(r"−ln p\(it (follows|does not)\)", text(live, "asked")))
    assert "it follows" in text(live, "guesses") and text(live, "trouble") == ""


def test_every_what_if(live):
    before = loss_of(live)
    live.execute_script("document.querySelector('#heads input').click()")  # a head off
    wait(live, lambda: "head 0 off" in text(live, "changes") and loss_of(live) != before)
    without = loss_of(live)
    live.execute_script("layers.pair(2, 1, 4, 3, river.look.tokens, river.look.tokens)")
    wait(live, lambda: "set this weight to" in text(live, "pair"))
    live.execute_script(
        "const s = document.querySelector('#pair input'); s.value = 0.9; s.dispatchEvent(new Event('change'))"
    )
    wait(live, lambda: "4 → 3 at 0.9" in text(live, "changes") and loss_of(live) != without)
    pinned = loss_of(live)
    choose(live, "names", "bert.encoder.layer.1")
    wait(live, lambda: "x′ =" in text(live, "tensor"))
    live.execute_script(
        "document.querySelector('#tensor form select').value = 2;"
        "document.querySelector('#tensor input').value = 'he closed the window .';"
        "document.querySelector('#tensor form').requestSubmit()"
    )
    wait(live, lambda: "closed the window" in text(live, "changes") and loss_of(live) != pinned)
    for left in (2, 1, 0):  # take them back, one by one
        live.execute_script("document.querySelector('.chip').click()")
        wait(live, lambda left=left: len(live.find_elements("css selector", ".chip")) == left)
    wait(live, lambda: loss_of(live) == before)


def test_a_step_and_back(live):
    before = loss_of(live)
    live.execute_script("document.getElementById('step').click()")
    wait(live, lambda: loss_of(live) < before)
    live.execute_script("document.getElementById('reset').click()")
    wait(live, lambda: loss_of(live) == before)


def test_a_step_while_the_words_are_still_asked_for(live):
    """Their next part waits for the new pass, or the server would refuse it: the parameters have moved."""
    ask(live, "the " * 37 + "[MASK]")
    wait(live, lambda: live.execute_script(LENGTH) == 40)  # which words mattered comes in seven parts
    live.execute_script(
        "const send = window.fetch; window.asked = [];"
        "window.fetch = async (address, request) => {"
        "  window.asked.push(address);"
        "  if (address === '/look') await new Promise(done => setTimeout(done, 500));"
        "  return send(address, request); };"
    )
    before = loss_of(live)
    words = "return document.getElementById('words').ariaBusy"
    assert live.execute_script("document.getElementById('step').click();" + words) == "true"
    asked = "return window.asked.slice(window.asked.indexOf('/step'), window.asked.indexOf('/step') + 3)"
    wait(live, lambda: len(live.execute_script(asked)) == 3)
    assert live.execute_script(asked)[:2] == ["/step", "/look"] and loss_of(live) != before
    live.execute_script("document.getElementById('reset').click()")
    wait(live, lambda: loss_of(live) == before)


def test_a_click_on_a_number_shows_its_numeric_derivative(live):
    choose(live, "names", "bert.encoder.layer.2.intermediate")
    wait(live, lambda: "(S, F)" in text(live, "tensor"))
    live.find_element("css selector", "#tensor canvas").click()
    wait(live, lambda: "numeric" in text(live, "tensor") and "by hand" in text(live, "tensor"))
    by_hand, numeric = re.search(r"by hand (\S+), numeric (\S+)", text(live, "tensor")).groups()
    assert float(by_hand) == pytest.approx(float(numeric), rel=1e-4, abs=1e-9)
    live.execute_script(  # the mouse trembles: what was told stays
        "const canvas = document.querySelector('#tensor canvas'), box = canvas.getBoundingClientRect();"
        "const clientX = box.left + box.width / 2, clientY = box.top + box.height / 2;"
        "canvas.dispatchEvent(new MouseEvent('mousemove', { clientX, clientY }))"
    )
    assert "numeric" in text(live, "tensor")


def test_a_number_can_be_chosen_from_the_keyboard(live):
    choose(live, "names", "bert.encoder.layer.2")
    wait(live, lambda: "x′ =" in text(live, "tensor"))
    live.execute_script(
        "const [row, column] = document.querySelectorAll('#tensor > .hint select');"
        "row.value = 3; column.value = 7; row.parentElement.querySelector('button').click()"
    )
    wait(live, lambda: "by hand" in text(live, "tensor"))
    by_hand, numeric = re.search(r"\[3,7\]: .* by hand (\S+), numeric (\S+)", text(live, "tensor")).groups()
    assert float(by_hand) == pytest.approx(float(numeric), rel=1e-4, abs=1e-9)


def test_clicks_on_a_token_hide_it_ask_about_it_and_show_it_again(live):
    def click():
        live.execute_script(
            "document.getElementById('asked').textContent = '';"
            "const box = document.getElementById('river').getBoundingClientRect();"
            "river.click({ clientX: box.left + 5, clientY: box.top + river.y(5) })"
        )
        wait(live, lambda: text(live, "asked"))
        return live.execute_script("return [river.look.tokens[5], river.look.place]")

    assert click() == ["[MASK]", 4]
    wait(live, lambda: "token 5 hidden" in text(live, "changes"))
    assert click() == ["[MASK]", 5]
    assert click() == ["and", 4]
    assert text(live, "changes") == ""


def test_a_special_token_is_asked_about_and_nothing_is_refused(live):
    live.execute_script(
        "const box = document.getElementById('river').getBoundingClientRect();"
        "river.click({ clientX: box.left + 5, clientY: box.top + river.y(0) })"
    )
    wait(live, lambda: live.execute_script("return river.look.place") == 0)
    assert text(live, "trouble") == text(live, "changes") == ""


def test_a_text_that_is_refused_changes_nothing(live):
    live.execute_script("document.querySelector('#heads input').click()")
    wait(live, lambda: "head 0 off" in text(live, "changes") and not busy(live))
    assert "without the changes" in text(live, "words")
    before = loss_of(live)
    ask(live, "no mask")
    wait(live, lambda: "no word is hidden in 'no mask'" in text(live, "trouble"))
    assert "head 0 off" in text(live, "changes") and loss_of(live) == before
    live.execute_script("document.querySelector('.chip').click()")
    wait(live, lambda: text(live, "changes") == "" and text(live, "trouble") == "")


def test_the_keyboard_hides_a_token_and_opens_a_pair(live):
    live.execute_script(
        "const s = document.querySelector('#asked select'); s.focus(); s.value = 2;"
        "s.dispatchEvent(new Event('change'))"
    )
    wait(live, lambda: live.execute_script("return river.look.place") == 2)
    assert live.execute_script("return document.activeElement.closest('#asked') !== null")
    live.execute_script("document.querySelector('#asked button').click()")
    wait(live, lambda: "token 2 hidden" in text(live, "changes"))
    live.execute_script("document.querySelector('#asked button').click()")
    wait(live, lambda: text(live, "changes") == "")
    live.execute_script(
        "const [head, query, key] = document.querySelectorAll('#pair select');"
        "[head.value, query.value, key.value] = [1, 4, 2]; document.querySelector('#pair button').click()"
    )
    wait(live, lambda: "head 1: [MASK] (the query) attends to opened (the key)" in text(live, "pair"))


@pytest.mark.parametrize("rate", ["", "1e200"])
def test_a_step_that_is_too_long_is_refused(live, rate):
    before = loss_of(live)
    live.execute_script(
        "document.getElementById('rate').value = arguments[0]; document.getElementById('step').click()", rate
    )
    wait(live, lambda: re.search("expected a number|no number any more", text(live, "trouble")))
    live.execute_script("document.getElementById('reset').click()")
    wait(live, lambda: text(live, "trouble") == "")
    assert loss_of(live) == before


def test_the_question_can_be_about_any_token(live):
    live.execute_script(
        "const s = document.querySelector('#asked select');s.value = 2; s.dispatchEvent(new Event('change'))"
    )
    wait(live, lambda: live.execute_script("return river.look.place") == 2)
    assert live.execute_script("return document.querySelector('#asked select').value") == "2"
    subject = open_subject("mini", dtype="float64")
    _, found = look(subject, subject.encode(TEXTS[0]), place=2)
    assert loss_of(live) == pytest.approx(found.loss, rel=1e-3)


@pytest.mark.parametrize("typed", [*TEXTS, "no mask", "", "the " * 300 + "[MASK]"])
def test_any_sentence_is_answered_or_refused_in_words(live, typed):
    live.execute_script(
        "document.getElementById('trouble').textContent = document.getElementById('asked').textContent = '';"
        "document.getElementById('text').value = arguments[0];"
        "document.getElementById('ask').requestSubmit()",
        typed,
    )
    wait(live, lambda: text(live, "asked") or text(live, "trouble"))
    if typed in TEXTS:
        assert text(live, "trouble") == "" and "the loss is" in text(live, "asked")
    else:
        assert re.search(r"no word is hidden|128", text(live, "trouble"))


def click_token(browser, index):
    browser.execute_script(
        "const box = document.getElementById('river').getBoundingClientRect();"
        "river.click({ clientX: box.left + 5, clientY: box.top + river.y(arguments[0]) })",
        index,
    )


def test_a_second_window_does_not_answer_for_the_first(live, address):
    first = live.current_window_handle
    live.switch_to.new_window("tab")
    try:
        live.get(address)
        wait(live, lambda: text(live, "asked") and not busy(live))
        ask(live, CAPITAL)
        wait(live, lambda: live.execute_script(LENGTH) == 9 and not busy(live))
    finally:
        live.close()
        live.switch_to.window(first)
    before = loss_of(live)
    choose(live, "names", "bert.encoder.layer.1")
    wait(live, lambda: "another window has asked" in text(live, "trouble"))
    assert "x′ =" not in text(live, "tensor")
    live.execute_script("document.getElementById('trouble').textContent = ''")
    live.execute_script("document.getElementById('step').click()")
    wait(live, lambda: "another window has asked" in text(live, "trouble"))
    live.execute_script("document.getElementById('ask').requestSubmit()")
    wait(live, lambda: "x′ =" in text(live, "tensor") and "13 × 256" in text(live, "tensor"))
    assert loss_of(live) == before and text(live, "trouble") == ""


def test_a_word_before_the_mask_is_hidden_and_the_question_stays(live):
    for place, hidden in ((4, "[MASK]"), (2, "[MASK]"), (4, "opened")):
        live.execute_script("document.getElementById('asked').textContent = ''")
        click_token(live, 2)
        wait(live, lambda: text(live, "asked"))
        assert live.execute_script("return [river.look.place, river.look.tokens[2]]") == [place, hidden]


def test_bars_are_as_long_as_their_numbers(live):
    widths = live.execute_script(
        "return layers.shown.words[0].values.map((v, i) => [Math.abs(v ?? 0),"
        "  document.querySelectorAll('#words tr')[i + 1].querySelector('td.share div')"
        "    .getBoundingClientRect().width])"
    )
    most, longest = max(widths)
    for value, width in widths:
        assert width / longest == pytest.approx(value / most, abs=0.01)


def test_what_is_clicked_while_another_text_comes(live):
    live.execute_script(SLOW)
    ask(live, CAPITAL)
    click_token(live, 5)
    wait(live, lambda: live.execute_script(LENGTH) == 9 and not busy(live))
    assert text(live, "changes") == "" and live.execute_script("return river.look.tokens[5]") == "is"
    wait(live, lambda: "x⁽⁰⁾" in text(live, "tensor"))
    ask(live, TEXTS[0])
    wait(live, lambda: live.execute_script(LENGTH) == 13 and not busy(live))
    wait(live, lambda: "13 × 256" in text(live, "tensor"))
    ask(live, CAPITAL)
    live.execute_script(
        "const [row, column] = document.querySelectorAll('#tensor > .hint select');"
        "row.value = 12; row.parentElement.querySelector('button').click()"
    )
    wait(live, lambda: live.execute_script(LENGTH) == 9 and not busy(live))
    assert text(live, "trouble") == ""


def test_after_a_refusal_all_controls_say_what_is_shown(live):
    live.execute_script(
        "document.getElementById('rate').value = '1e200'; document.getElementById('step').click()"
    )
    wait(live, lambda: "no number any more" in text(live, "trouble"))
    chosen = (
        "return [document.querySelector('#asked select').value,"
        "  document.querySelector('#heads input').checked]"
    )
    live.execute_script(
        "document.getElementById('trouble').textContent = '';"
        "const s = document.querySelector('#asked select');"
        "s.value = 2; s.dispatchEvent(new Event('change'));"
        "document.querySelector('#heads input').click()"
    )
    wait(live, lambda: text(live, "trouble"))
    wait(live, lambda: live.execute_script(chosen) == ["4", False])
    live.execute_script("document.getElementById('reset').click()")
    wait(live, lambda: text(live, "trouble") == "" and not busy(live))


def test_the_arrow_keys_move_a_weight_on_and_the_page_says_that_it_is_set(live):
    live.execute_script("layers.pair(2, 1, 4, 3, river.look.tokens, river.look.tokens)")
    wait(live, lambda: "set this weight to" in text(live, "pair"))
    share = re.search(r"softmax ([\d.]+ %)\.", text(live, "pair")).group(1)
    start = float(live.find_element("css selector", "#pair input").get_attribute("value"))
    live.find_element("css selector", "#pair input").send_keys("\ue014")
    for step in (1, 2):
        told = f"4 → 3 at {start + step / 100:.2g}"
        wait(live, lambda told=told: told in text(live, "changes") and not busy(live))
        wait(live, lambda: live.execute_script("return document.activeElement.type") == "range")
        live.switch_to.active_element.send_keys("\ue014")
    wait(live, lambda: f"4 → 3 at {start + 0.03:.2g}" in text(live, "changes"))
    wait(live, lambda: "it has been changed to" in text(live, "pair"))
    assert f"softmax {share}; it has been changed to" in text(live, "pair")


def test_a_text_with_a_line_break(window):
    with serving("the capital of france\nis [MASK] .") as found:
        window.get(found)
        wait(window, lambda: text(window, "asked") and not busy(window))
        before = window.execute_script("return river.look.tokens.join(' ')")
        window.execute_script(
            "document.getElementById('asked').textContent = '';document.getElementById('ask').requestSubmit()"
        )
        wait(window, lambda: text(window, "asked") and not busy(window))
        assert window.execute_script("return river.look.tokens.join(' ')") == before
        leave(window)


def test_a_text_that_is_longer_than_a_request(live):
    ask(live, "the " * 300_000)
    wait(live, lambda: text(live, "trouble"))
    assert "too long for one request" in text(live, "trouble")


def test_each_box_says_which_head_it_is_for(live):
    boxes = live.find_elements("css selector", "#heads input")
    assert [box.accessible_name for box in boxes] == [f"layer 0, head {head} off" for head in range(4)]
    live.set_window_size(1237, 900)
    assert all(
        live.execute_script(
            "const labels = [...document.querySelectorAll('#heads label')];"
            "return labels.map(l => l.getClientRects().length === 1)"
        )
    )


def written_texts(browser):
    """What the picture of the streams writes: each text, how squeezed it is, and how far down it ends."""
    return browser.execute_script(
        "const told = [], kind = CanvasRenderingContext2D.prototype, fill = kind.fillText;"
        "kind.fillText = function (text, x, y, room) {"
        "  told.push([text, room ? this.measureText(text).width / room : 0, y + 6]);"
        "  return fill.apply(this, arguments); };"
        "river.draw(); kind.fillText = fill; return told"
    )


def test_long_names_are_cut_and_not_squeezed(live):
    live.set_window_size(1300, 900)  # then words stand beside their tokens
    ask(live, "antidisestablishmentarianism is [MASK] .")
    wait(live, lambda: "##arian" in live.execute_script("return river.look.tokens.join(' ')"))
    assert max(squeezed for _, squeezed, _ in written_texts(live)) <= 1.5


def test_the_guesses_at_the_last_token_are_inside_the_picture(live):
    ask(live, "the " * 40 + "[MASK]")
    wait(live, lambda: live.execute_script(LENGTH) == 43)
    live.execute_script(
        "const s = document.querySelector('#asked select');s.value = 42; s.dispatchEvent(new Event('change'))"
    )
    wait(live, lambda: live.execute_script("return river.look.place") == 42)
    assert max(end for _, _, end in written_texts(live)) <= live.execute_script("return river.height")


def test_numbers_stay_beside_words_that_run_from_right_to_left(window, tmp_path):
    tokenizer = BertTokenizer("[PAD] [UNK] [CLS] [SEP] [MASK] שלום עולם בית ספר יום טוב לילה אור .".split())
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "initializer_range": 0.5}
    config = BertConfig(vocab_size=len(tokenizer), num_hidden_layers=2, **sizes)
    BertForPreTraining(config, seed=3).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    written = page(open_subject(tmp_path), "m", [("שלום [MASK] טוב .", None)])
    (tmp_path / "page.html").write_text(written, encoding="utf-8")
    window.get((tmp_path / "page.html").as_uri())
    lines = window.execute_script(
        "return [...document.querySelectorAll('#lens td')].map((cell) => {"
        "  const node = cell.firstChild, at = (i) => { const r = document.createRange(); r.setStart(node, i);"
        "    r.setEnd(node, i + 1); return r.getBoundingClientRect().left; };"
        "  const digit = node.data.search(/[0-9]/), first = node.data.search(/[^\\u2068]/);"
        "  return [node.data, at(digit), at(first), at(node.data.length - 1)]; })"
    )
    hebrew = [line for line in lines if re.search("[א-ת]", line[0])]
    assert hebrew and all(word < number < sign for _, number, word, sign in hebrew), hebrew


def test_a_text_that_is_cut_is_said_on_the_page(window, tmp_path):
    from small_subjects import open_small

    open_small("labels", tmp_path)
    with serving("ann sings", "--model", str(tmp_path)) as found:
        window.get(found)
        wait(window, lambda: text(window, "asked") and not busy(window))
        ask(window, "ann sings a fine film " * 10)
        wait(window, lambda: window.execute_script(LENGTH) == 40)
        assert "only the first 40 tokens are read" in text(window, "trouble")
        leave(window)


def test_scores_are_seen_beside_those_that_are_masked(window, tmp_path):
    from minibert.text import XLNetTokenizer
    from minibert.variants.xlnet import XLNetConfig, XLNetLMHeadModel

    special = [(token, 0.0) for token in "<unk> <s> </s> <cls> <sep> <pad> <mask> <eod> <eop>".split()]
    tokenizer = XLNetTokenizer([*special, *((f"▁{word}", -3.0) for word in "ann sings a fine film".split())])
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "initializer_range": 0.5}
    config = XLNetConfig(vocab_size=len(tokenizer), num_hidden_layers=2, pad_token_id=5, **sizes)
    XLNetLMHeadModel(config, seed=2).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    written = page(open_subject(tmp_path), "m", [("ann sings a <mask> film", None)])
    (tmp_path / "page.html").write_text(written, encoding="utf-8")
    window.get((tmp_path / "page.html").as_uri())
    choose(window, "names", "bert.encoder.layer.1.attention.self.scores")
    canvases = "return document.querySelectorAll('#tensor canvas').length"
    wait(window, lambda: window.execute_script(canvases) == 2)
    colours = window.execute_script(
        "const c = document.querySelector('#tensor canvas');"
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        "let blue = 0;"
        "for (let i = 0; i < d.length; i += 4) if (d[i + 3] > 100 && d[i + 2] > d[i] + 40) blue++;"
        "return blue"
    )
    assert colours > 500


def test_a_table_of_numbers_is_not_cut_in_a_narrow_window(window, tmp_path):
    from minibert.explore.explain import Settings, explain
    from minibert.explore.report import as_page

    told = explain(open_subject("mini"), TEXTS[0], settings=Settings(steps=1))
    (tmp_path / "page.html").write_text(as_page([told], "mini"), encoding="utf-8")
    window.get((tmp_path / "page.html").as_uri())
    metrics = {"width": 330, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        heights = window.execute_script(
            "document.querySelector('details').open = true;"
            "return [...document.querySelectorAll('td')].map((cell) => {"
            "  const r = document.createRange(); r.selectNodeContents(cell);"
            "  return r.getClientRects().length; })"
        )
        assert set(heights) == {1} and fits(window)
    finally:
        window.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_attention_times_gradient_is_what_the_list_calls_it(browser):
    choose(browser, "sentences", 0)
    choose(browser, "layer", 3)
    choose(browser, "kind", "gradient")
    choose(browser, "form", "matrix")
    blue, told = browser.execute_script(
        "const look = river.look, at = ((3 * 4 + 2) * 13 + 4) * 13 + 2;"  # head 2, from [MASK] to opened
        "const product = unpack(look.maps).values[at] * unpack(look.dmaps).values[at];"
        "const canvas = document.querySelectorAll('#heads canvas')[2], ratio = window.devicePixelRatio;"
        "const size = (parseFloat(canvas.style.width) - 76) / 13;"
        "const [r, , b] = canvas.getContext('2d').getImageData("
        "  Math.round((74 + 2.5 * size) * ratio), Math.round((62 + 4.5 * size) * ratio), 1, 1).data;"
        "const kind = document.getElementById('kind');"
        "return [b > r, kind.options[kind.selectedIndex].text + Math.sign(product)]"
    )
    assert blue == (told.count("−") + told.count("-") == 2), told
    choose(browser, "kind", "maps")
