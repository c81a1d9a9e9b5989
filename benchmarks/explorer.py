"""``python -m benchmarks.explorer``: pictures of the explorer's page, or how fast it is.

In a headless Chromium. Writes the pictures of docs/explore.md into docs/images. With ``--time`` it measures
instead, on an idle machine: loading the page, a look into the model (a forward pass for the best guess, one
that keeps all values, a backward pass), what the page then needs to draw it, and a step of the slider.
"""

import argparse
import io
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image
from selenium import webdriver
from selenium.webdriver.support.wait import WebDriverWait

from benchmarks.results import describe_machine

TEXT = "she opened the [MASK] and looked out into the garden ."
LONG = (  # 32 tokens
    "when the old man came home from the market in the evening , he put his basket on the [MASK] and called "
    "for his wife and his two sons ."
)
IMAGES = Path(__file__).parents[1] / "docs" / "images"
FLAGS = (
    "headless=new no-sandbox disable-gpu disable-background-networking disable-component-update disable-sync "
    "no-first-run"
)


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.explorer", description=__doc__)
    parser.add_argument("--time", action="store_true", help="measure, instead of making pictures")
    parser.add_argument("--model", default="mini", metavar="FOLDER")
    options = parser.parse_args()
    text = LONG if options.time else TEXT
    command = [sys.executable, "-m", "minibert", "explore", "--model", options.model, text, "--no-browser"]
    with (
        tempfile.TemporaryDirectory() as profile,
        subprocess.Popen([*command, "--device", "cpu"], stdout=subprocess.PIPE, text=True) as server,
    ):
        assert server.stdout
        address = server.stdout.readline().split()[1]
        page = Page(profile)
        try:
            page.open(address)
            (measure if options.time else picture)(page)
        finally:
            page.browser.quit()
            server.terminate()
    return 0


def open_browser(profile: Path) -> webdriver.Chrome:
    """A headless Chromium that keeps what a page writes to its console, and reports nothing to anybody."""
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS.split(), f"user-data-dir={profile}"):
        options.add_argument(f"--{flag}")
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


class Page:
    """The page in a browser."""

    def __init__(self, profile: str):
        self.browser = open_browser(Path(profile))

    def open(self, address: str) -> None:
        """Open it, and wait until all is shown."""
        self.browser.set_window_size(1180, 4200)
        self.browser.get(address)
        self.wait("document.getElementById('words').ariaBusy === 'false'")

    def run(self, script: str) -> Any:
        """The value of a script."""
        return self.browser.execute_script(script)

    def wait(self, condition: str) -> None:
        """Until a condition is true."""
        WebDriverWait(self.browser, 30, poll_frequency=0.02).until(lambda _: self.run(f"return {condition}"))

    def choose(self, name: str, value: Any) -> None:
        """Choose a value in a list."""
        chosen = f"const s = document.getElementById('{name}'); s.value = '{value}';"
        self.run(f"{chosen} s.dispatchEvent(new Event('change'))")

    def save(self, section: str, name: str) -> None:
        """A picture of the section that an element is in, in 256 colours."""
        found = self.browser.execute_script(
            "return document.getElementById(arguments[0]).closest('section')", section
        )
        image = Image.open(io.BytesIO(found.screenshot_as_png)).convert("RGB")
        image.quantize(256).save(IMAGES / f"explore-{name}.png", optimize=True)


def picture(page: Page) -> None:
    """Six pictures."""
    IMAGES.mkdir(exist_ok=True)
    for at, name in ((380, "forward"), (1000, "backward")):
        page.run(f"const t = document.getElementById('time'); t.value = {at}; t.oninput()")
        page.save("river", name)
    page.save("guesses", "guesses")
    page.save("words", "words")
    page.choose("layer", 3)
    page.choose("form", "arcs")
    page.save("heads", "arcs")
    page.choose("names", "bert.encoder.layer.3.attention.self.probabilities")
    page.wait("document.getElementById('tensor').innerText.includes('softmax')")
    page.run(  # [MASK] asks, "opened" answers: row 4 and column 2, in squares of 26 pixels beside the names
        "const canvas = document.querySelector('#tensor canvas'), box = canvas.getBoundingClientRect();"
        "const clientX = box.left + 74 + 26 * 2.5, clientY = box.top + 62 + 26 * 4.5;"
        "canvas.dispatchEvent(new MouseEvent('click', { clientX, clientY }))"
    )
    page.wait("document.getElementById('tensor').innerText.includes('by hand')")
    page.save("tensor", "value")


def measure(page: Page) -> None:
    """Medians of ten, in milliseconds. Loading is from the address to the first drawing."""
    loads = []
    for _ in range(10):
        start = time.perf_counter()
        page.browser.get(page.browser.current_url)
        page.wait("document.getElementById('asked').innerText !== ''")
        loads.append(1000 * (time.perf_counter() - start))
    page.wait("document.getElementById('words').ariaBusy === 'false'")
    asked = """
        const done = arguments[0], start = performance.now();
        live.ask("look", { text: data.live.text }).then((seen) => {
            const answered = performance.now();
            show({ text: "", look: seen, tensors: {}, words: layers.shown.words });
            done([answered - start, performance.now() - answered]);
        });
    """
    pairs = [page.browser.execute_async_script(asked) for _ in range(11)][1:]
    slide = page.run(
        "const start = performance.now(); for (let i = 0; i < 100; i++) river.draw();"
        "return (performance.now() - start) / 100"
    )
    tokens = page.run("return river.look.tokens.length")
    looked, drawn = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        f"{tokens} tokens: loading {statistics.median(loads):.0f} ms; a look {looked:.0f} ms, "
        f"drawing {drawn:.0f} ms, the slider {slide:.1f} ms a step"
    )
    print(describe_machine()["processor"])


if __name__ == "__main__":
    sys.exit(main())
