"""Cutting paragraphs into sentences."""

import pytest

from minibert.data.sentences import ends_like_a_sentence, split_sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["It rained.", "We stayed in!", "Did you?", "Yes…", "No."],
        ["Mr. Brown met Dr. Green on St. John's Road.", "They talked."],
        ["Use a tool, e.g. Python, or cf. Fig. 3 in vol. 2.", "Then stop."],
        ["J. R. R. Tolkien and C. S. Lewis were friends.", "So they said."],
        ["He lived in the U.S. Army barracks."],
        ["He moved to the U.S.", "The war was over."],
        ['"Stop!" he cried.', '"Why?"', "(He laughed.)", "“Indeed.”", "She left."],
        ["The value is 3.14 or so.", "2 is even.", "So am I.", "Indeed."],
        ["He waited . . . and waited.", "Nobody came."],
        ["Add x to y.", "Then z follows."],
        ["它很大。", "真的吗？", "是的！"],
        ["No mark at the end"],
        ["यह घर है।", "वह कौन है?", "वह बड़ा है॥", "हाँ।"],  # Hindi
        ["یہ گھر ہے۔", "وہ کون ہے؟", "جی ہاں۔"],  # Urdu
        ["Սա տուն է։", "Այն մեծ է։"],  # Armenian
        ["ይህ ቤት ነው።", "ትልቅ ነው።"],  # Amharic
    ],
)
def test_sentences_are_found_again_after_joining(sentences):
    glue = "" if sentences[0] > "\u4e00" else " "
    assert split_sentences(glue.join(sentences)) == sentences


def test_a_long_run_of_marks_is_read_once():
    """Tried anew from each mark, these would take hours."""
    text = "Chapter one " + "." * 300_000 + "12 and more"
    assert split_sentences(text) == [text]


def test_white_space_is_reduced_and_nothing_else_is_lost():
    text = "  One\ttwo\r\nthree.\fFour  five.\u00a0Six. "
    assert split_sentences(text) == ["One two three.", "Four five.", "Six."]
    assert split_sentences(" \n ") == []


@pytest.mark.parametrize(
    ("line", "ends"),
    [("Yes.", True), ('"Yes!" ', True), ("(So…)", True), ("好。", True), ("and so", False), ("", False)],
)
def test_ends_like_a_sentence(line, ends):
    assert ends_like_a_sentence(line) is ends
