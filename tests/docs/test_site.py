"""The site's parts: links, notebooks, docstrings, the check. ``make docs`` builds and checks the whole."""

import base64

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from minibert.explore.attention import View
from website import check, pages
from website.figures import gallery
from website.links import rewrite, slug
from website.mathml import kept_together, mended
from website.notebooks import to_markdown
from website.reference import ROOMS, WITHOUT_ALL, base_classes, escaped, signature, source_lines, to_rest

KNOWN = {"README.md", "docs/gpu.md", "docs/README.md", "notebooks/05_layer_norm.ipynb"}


@pytest.mark.parametrize(
    "page, target, moved",
    [
        ("docs/gpu.md", "../README.md", "../index.md"),
        ("docs/gpu.md", "../README.md#speed", "../index.md#speed"),
        ("README.md", "docs/gpu.md#Checking-the-GPU", "docs/gpu.md#checking-the-gpu"),
        (
            "docs/gpu.md",
            "../notebooks/05_layer_norm.ipynb#3.-Where-does-LayerNorm's-dx-come-from?",
            "../notebooks/05_layer_norm.md#3-where-does-layernorms-dx-come-from",
        ),
        ("notebooks/05_layer_norm.ipynb", "#8.-In-BERT", "#8-in-bert"),
        ("docs/gpu.md", "../minibert/replay.py", "site:../source/minibert/replay.py.html"),
        ("README.md", "LICENSE", "site:source/LICENSE.html"),
        ("README.md", "docs/images/poster.svg", "site:docs/images/poster.svg"),
        ("README.md", "docs", "docs/README.md"),
        ("README.md", "https://example.org/a#B", "https://example.org/a#B"),
    ],
)
def test_links_lead_to_pages_of_the_site(page, target, moved):
    assert rewrite(f"see [it]({target}).", page, KNOWN)[0] == f"see [it]({moved})."


def test_pictures_stay_where_they_are_and_are_copied():
    text = "![a [b] c](images/poster.svg) and [a](images/poster.svg)"
    moved, files = rewrite(text, "docs/gpu.md", KNOWN)
    assert moved == "![a [b] c](images/poster.svg) and [a](site:images/poster.svg)"
    assert files == {"docs/images/poster.svg"}


def test_code_and_formulas_are_no_links():
    text = "`a[0](gpu.md)` $f[0](gpu.md)$\n```\n[a](../README.md)\n```\n"
    assert rewrite(text, "docs/gpu.md", KNOWN) == (text, set())


def test_a_slug_is_githubs():
    assert slug("7. Why 80/10/10?") == "7-why-801010"
    assert slug("Why does a whole word become [UNK]?") == "why-does-a-whole-word-become-unk"


def test_every_page_is_listed_once():
    known = pages.pages()
    assert {"docs/gpu.md", "notebooks/00_start_here.ipynb", "CONTRIBUTING.md"} <= known
    shown = [*pages.listed(known, pages.CHAPTERS).values(), *pages.listed(known, pages.BELOW).values()]
    flat = [page for chapter in shown for page in chapter]
    assert len(flat) == len(set(flat))
    unlisted = known - set(flat) - {pages.FRONT}
    assert unlisted == {page for page in known if page.startswith("notebooks/exercises/")}


PNG = b"\x89PNG a picture"
ABOUT = "> **Exercise** `05.layer_norm` · level 1 of 3"


def picture(alt: str) -> nbformat.NotebookNode:
    data = {"image/png": base64.b64encode(PNG).decode(), "text/plain": "<Figure>"}
    return new_output("display_data", data, metadata={"image/png": {"alt": alt, "width": 640}})


@pytest.fixture
def notebook():
    cells = [
        new_markdown_cell(f"# 05 · LayerNorm\n\n{ABOUT}"),
        new_code_cell("plot()", metadata={"tags": ["figure"]}, outputs=[picture('a "line"')]),
        new_markdown_cell("$x$", metadata={"tags": ["derivation"]}),
        new_code_cell("solve()", metadata={"tags": ["solution"]}),
        new_code_cell("print(1)", outputs=[new_output("stream", name="stdout", text="``` 1\n")]),
    ]
    for number, cell in enumerate(cells, 1):
        cell.id = f"cell-{number}"
    return new_notebook(cells=cells)


def test_a_notebook_becomes_a_page_with_its_outputs(notebook):
    text, shown, linked = to_markdown(notebook, "notebooks/05_layer_norm.ipynb", KNOWN)
    assert shown == {"images/05_layer_norm-cell-2-0.png": PNG}
    assert 'alt="a &quot;line&quot;" width="640"' in text
    assert "````text\n``` 1\n````" in text
    assert linked == set()
    folded = text.split("<summary>")
    assert [part.split("</summary>")[0] for part in folded[1:]] == [
        "The code of this figure",
        "The derivation",
        "The solution",
    ]
    anchor = "exercise-05.layer_norm"
    assert f'<a id="{anchor}"></a>' in text
    assert f"[open the exercise](site:exercises/05_layer_norm.html#{anchor})" in text


def test_a_page_inside_an_output_becomes_a_file_in_a_frame_with_its_title():
    shown_inside = View("<p>a &amp; b</p>", height=100)._repr_html_()
    output = new_output("display_data", {"text/html": shown_inside, "text/plain": "View"})
    cell = new_code_cell("view(model, text)", id="cell-1", outputs=[output])
    text, shown, _ = to_markdown(new_notebook(cells=[cell]), "notebooks/05_layer_norm.ipynb", KNOWN)
    assert shown == {"images/05_layer_norm-cell-1-0.html": b"<p>a &amp; b</p>"}
    assert 'src="images/05_layer_norm-cell-1-0.html" title="What every head looks at"' in text


def test_formulas_are_left_where_markdown_finds_them():
    cell = new_markdown_cell(
        "a $x W$, $x\n+ b$ and `$c\n`\n\n<details>\n<summary>Is $y$ it?</summary>\n\nb\n\n</details>"
    )
    text, _, _ = to_markdown(new_notebook(cells=[cell]), "notebooks/05_layer_norm.ipynb", KNOWN)
    assert text == (
        "a $x W$, $x + b$ and `$c\n`\n\n<details>\n<summary>\n\nIs $y$ it?\n\n</summary>\n\nb\n\n</details>\n"
    )


def test_an_exercise_is_not_folded_and_leads_back(notebook):
    text, _, _ = to_markdown(notebook, "notebooks/exercises/05_layer_norm.ipynb", KNOWN)
    assert "The solution<" not in text and "solve()" in text
    assert "[its solution](site:../05_layer_norm.html#exercise-05.layer_norm)" in text


def test_the_gallery_shows_every_figure_and_leads_to_its_page(notebook):
    text, _, _ = to_markdown(notebook, "notebooks/05_layer_norm.ipynb", KNOWN)
    pictures = gallery([("notebooks/05_layer_norm.ipynb", text), ("docs/gpu.md", "# GPU\n![seen](a.png)")])
    assert pictures.count("<img ") == 2
    name = "05_layer_norm-cell-2-0"
    link = f'<a href="notebooks/05_layer_norm.html#{name}"><img src="notebooks/images/{name}.png"'
    assert link in pictures
    assert '<a href="docs/gpu.html"><img src="docs/a.png" alt="seen"' in pictures


def test_docstrings_become_rest():
    doc = "y = γ x*_ of `x`.\n\n    a = b * c\n\nArgs:\n    x, y: both\n        of them.\n\n"
    doc += "It is:\n  * one\n  * two"
    assert to_rest(doc) == [
        "y = γ x\\*\\_ of \\ ``x``\\ .",
        "",
        "::",
        "",
        "        a = b * c",
        "",
        "",
        "- **x, y**: both",
        "  of them.",
        "",
        "It is:",
        "",
        "- one",
        "- two",
        "",
    ]


def test_a_public_name_in_a_docstring_is_a_link():
    names = {"BertModel": "minibert.bert.BertModel"}
    link = "\\ :py:obj:`BertModel <minibert.bert.BertModel>`\\ "
    assert escaped("a ``BertModel`` or :func:`other`", names) == f"a {link} or \\ ``other``\\ "


def test_the_reference_has_every_room_that_offers_names():
    offering = {
        path.parent.relative_to(pages.ROOT / "minibert").as_posix().replace("/", ".")
        for path in (pages.ROOT / "minibert").rglob("__init__.py")
        if "\n__all__ = " in path.read_text(encoding="utf-8")
    }
    assert offering - {"."} == set(ROOMS) - set(WITHOUT_ALL)


def test_the_reference_has_what_public_classes_inherit():
    assert base_classes()["minibert.folders.model.PretrainedModel"] == "bert"
    assert not any(full.endswith(".BertModel") for full in base_classes())


def test_signatures_are_those_of_the_source():
    from minibert import ops

    assert signature(ops.softmax) == ("(x: Array)", "tuple[Array, Cache]")
    file, line = source_lines("minibert.ops", "softmax")
    assert file == "minibert/ops/stable_softmax.py"
    source = (pages.ROOT / file).read_text(encoding="utf-8").splitlines()
    assert source[line - 1].startswith("def softmax(")


GOOD = '<h1 id="top">A</h1><a href="#top">up</a><a href="https://example.org">out</a><img src="a.png" alt="">'


def site_of(folder, **files: str) -> list[str]:
    (folder / "a.png").write_bytes(PNG)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text, encoding="utf-8")
    return check.problems(folder)[1]


def test_a_good_site_has_no_problems(tmp_path):
    other = '<a href="index.html#top">a</a><script>fetch("/own.json")</script>'
    other += "<p>$1 and <code>$a$</code>, <pre>$b$</pre></p>"
    other += '<svg id="x"><use href="#x"/></svg>'
    assert site_of(tmp_path, index_html=GOOD, b_html=other, s_css="a { background: url(data:abc) }") == []


@pytest.mark.parametrize(
    "html, problem",
    [
        ('<a href="none.html">', "no such file"),
        ('<a href="../outside.html">', "no such file"),
        ('<a href="#nowhere">', "no such anchor"),
        ('<img src="none.png" alt="">', "no such file"),
        ('<img src="a.png">', "without alt"),
        ('<iframe srcdoc="a"></iframe>', "without alt"),
        ('<img src="https://example.org/a.png" alt="">', "fetches"),
        ('<script src="//example.org/a.js"></script>', "fetches"),
        ('<link rel="stylesheet" href="https://example.org/a.css">', "fetches"),
        ('<link rel="preconnect" href="https://example.org">', "fetches"),
        ('<img srcset="a.png 1x, https://example.org/a.png 2x" alt="">', "fetches"),
        ("<style>@import 'https://example.org/a.css';</style>", "fetches"),
        ('<p style="background: url(https://example.org/a.png)">', "fetches"),
        ('<script>fetch("https://example.org/a")</script>', "fetches"),
        ('<script>const a = await import("https://example.org/a.js")</script>', "fetches"),
        ('<script>image.src = "//example.org/a.png"</script>', "fetches"),
        ("<p>the state $x^{(0)}$ is</p>", "LaTeX"),
        ("<p>it is $x W^\\top</p>", "LaTeX"),
        (
            '<iframe title="a" srcdoc="&lt;img alt=&quot;&quot; src=&quot;https://example.org/a&quot;&gt;"></iframe>',
            "fetches",
        ),
    ],
)
def test_a_bad_site_is_found_out(tmp_path, html, problem):
    found = site_of(tmp_path, index_html=GOOD + html)
    assert len(found) == 1 and problem in found[0]


def test_what_style_sheets_and_scripts_fetch_is_found(tmp_path):
    found = site_of(
        tmp_path,
        a_css="@font-face { src: url('https://example.org/a.woff2') }",
        b_js='new Worker("https://example.org")',
    )
    assert len(found) == 2


@pytest.mark.parametrize(
    "katex, browsers",
    [
        # (−1): a sign; a − 1: a difference
        ("<mo>(</mo><mo>−</mo><mn>1</mn>", '<mo>(</mo><mo form="prefix">−</mo><mn>1</mn>'),
        ("<mi>a</mi><mo>−</mo><mn>1</mn>", "<mi>a</mi><mo>−</mo><mn>1</mn>"),
        ("<mo>)</mo><mo>−</mo><mn>1</mn>", "<mo>)</mo><mo>−</mo><mn>1</mn>"),
        # x += y
        ("<mo>+</mo><mo>=</mo>", "<mo>+=</mo>"),
        # |x|, but p(x | y)
        ('<mi mathvariant="normal">∣</mi>', '<mo stretchy="false" lspace="0" rspace="0">|</mo>'),
        ('<mo stretchy="false">∥</mo>', '<mo stretchy="false" lspace="0" rspace="0">‖</mo>'),
        ("<mo>∣</mo>", "<mo>∣</mo>"),
        # w tanh(x) and log p
        (
            '<mi>w</mi><mi>tanh</mi><mo>\u2061</mo><mo stretchy="false">(</mo>',
            '<mi>w</mi><mspace width="0.1667em"></mspace><mi>tanh</mi><mo stretchy="false">(</mo>',
        ),
        ("<mi>log</mi><mo>\u2061</mo><mi>p</mi>", '<mi>log</mi><mspace width="0.1667em"></mspace><mi>p</mi>'),
        # y′
        ("<msup><mi>y</mi><mo>′</mo></msup>", "<mrow><mi>y</mi><mo>′</mo></mrow>"),
        # the LaTeX source
        ("<annotation><mo>+</mo><mo>=</mo>", "<annotation><mo>+</mo><mo>=</mo>"),
    ],
)
def test_formulas_are_mended_for_browsers(katex, browsers):
    assert mended(katex) == browsers


def test_a_formula_and_the_mark_after_it_are_kept_together():
    formula = '<span class="katex"><math><mi>x</mi></math></span>'
    whole = f'<span style="white-space: nowrap">({formula}),</span>'
    assert kept_together(f"a {formula} b ({formula}), c") == f"a {formula} b {whole} c"
