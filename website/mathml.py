"""KaTeX's MathML, as browsers should get it.

It is made for screen readers, beside a picture of the formula. Here browsers draw it, and take some of it
otherwise than it is meant: a minus after a bracket for a difference, the bars of a norm for a relation.
"""

import re

# An invisible "apply the function", which KaTeX writes after log, tanh and the like.
APPLY = "<mo>\u2061</mo>"
NAME = f"<mi[^>]*>[^<]*</mi>{APPLY}"
THIN = '<mspace width="0.1667em"></mspace>'
BASE = "(?:<mrow>)?<m[io][^>]*>[^<]*</m[io]>(?:</mrow>)?"
NO_SPACE = 'lspace="0" rspace="0"'
# What browsers would set wrongly, and what they are given instead, in this order.
MENDED = (
    # tanh² x: the function is applied after its exponent, and the exponent stands close to it
    (rf"{APPLY}</mrow>(<m[ino][^>]*>[^<]*</m[ino]>)</m(su[bp])>", rf"</mrow>\1</m\2>{APPLY}"),
    # w tanh(x): a space in front of the function, if what stands there is no operator
    (rf"(</m(?:i|n|sub|sup|subsup|frac|sqrt)>)((?:<msu[bp]><mrow>)?{NAME})", rf"\1{THIN}\2"),
    # log p needs a space, log(p) none
    (rf'{APPLY}<mo stretchy="false">\(', '<mo stretchy="false">('),
    (APPLY, THIN),
    # x += y and x =: y: one operator, not two with a gap
    ("<mo>([+−=])</mo><mo>([=:])</mo>", r"<mo>\1\2</mo>"),
    # (−1), = −1: a sign after an operator or a bracket that opens is no difference
    (r"(<mo[^>]*>[^)\]}∣∥′!…⋯]+</mo>)<mo>([−±])</mo>", r'\1<mo form="prefix">\2</mo>'),
    # |x| and ‖x‖ are brackets. What KaTeX writes for them is "divides" and "parallel to"
    (r'<mi mathvariant="normal">∣</mi>', f'<mo stretchy="false" {NO_SPACE}>|</mo>'),
    (r'<mi mathvariant="normal">∥</mi>', f'<mo stretchy="false" {NO_SPACE}>‖</mo>'),
    (r"<mo ([^>]+)>∣</mo>", rf"<mo \1 {NO_SPACE}>|</mo>"),
    (r"<mo ([^>]+)>∥</mo>", rf"<mo \1 {NO_SPACE}>‖</mo>"),
    # The font's prime is a raised one already
    (rf"<msup>({BASE})((?:<mrow>)?(?:<mo[^>]*>′</mo>)+(?:</mrow>)?)</msup>", r"<mrow>\1\2</mrow>"),
    # Browsers know no font but "normal" by its name
    ('<mi mathvariant="sans-serif">T</mi>', "<mi>𝖳</mi>"),
)
# A formula in a line, with the bracket in front of it and the marks after it.
FORMULA = re.compile(r'(\(?)(<span class="katex">(?:(?!</span>).)*</span>)([,.;:!?)]*)', re.DOTALL)


def mended(written: str) -> str:
    """The MathML of one formula, with the changes above. The LaTeX that it carries along stays as it is."""
    shown, source, rest = written.partition("<annotation")
    for pattern, replacement in MENDED:
        shown = re.sub(pattern, replacement, shown)
    return shown + source + rest


def kept_together(page: str) -> str:
    """The HTML of a page, in which no line begins with the mark that follows a formula."""
    return FORMULA.sub(
        lambda found: (
            f'<span style="white-space: nowrap">{found[0]}</span>' if found[1] or found[3] else found[0]
        ),
        page,
    )
