"""English sentences out of docstrings."""

import pytest

from minibert.data.prose import is_prose, paragraphs, prose_sentences, without_markup

NUMPYDOC = """Compute the weighted mean of an array.

    The weights are normalised first, so that they sum to one; see the
    notes for what happens to missing values.

    Parameters
    ----------
    a : array_like
        The array whose mean is wanted.
    axis : {int, None}, optional
        Axis along which the mean is computed.  The default is to take
        the mean over all of them.

    Returns
    -------
    mean : ndarray
        The mean of the elements along the axis.

    See Also
    --------
    median : The middle of the sorted values is what it returns.

    Notes
    -----
    .. versionadded:: 1.2
       This line about versions is not to be kept at all.

    .. note:: This is a remark which the reader should not miss.

    The formula is

    .. math:: \\\\mu = \\\\sum_i w_i a_i

    and the proof is given in [1]_. The `weights` may be given to
    :func:`numpy.average` as well [2]_.

    ==========  =================================
    Name        The meaning of this is a table.
    ==========  =================================

    * The first item is a sentence of its own.
    * The second item goes on in a line that is
      indented below it.

    References
    ----------
    .. [1] A. Author wrote the first paper on it.

    Examples
    --------
    This is how the function is called::

        import nothing  # This is code, not a sentence for the reader.

    The result of the call is a number.

    >>> mean([1, 2])
    This is the output, and it is not prose.

    At last there is a closing remark.
    """

EXPECTED = [
    "Compute the weighted mean of an array.",
    "The weights are normalised first, so that they sum to one; see the notes for what happens to missing "
    "values.",
    "The array whose mean is wanted.",
    "Axis along which the mean is computed.",
    "The default is to take the mean over all of them.",
    "The mean of the elements along the axis.",
    "This is a remark which the reader should not miss.",
    "The weights may be given to numpy.average as well.",
    "The first item is a sentence of its own.",
    "The second item goes on in a line that is indented below it.",
    "This is how the function is called:",
    "The result of the call is a number.",
    "At last there is a closing remark.",
]


def test_only_the_prose_of_a_docstring_remains():
    assert prose_sentences(NUMPYDOC) == EXPECTED


def test_sections_of_references_are_left_out():
    """Also where what they say is a sentence."""
    text = (
        "What it does is said here in a sentence.\n\nReferences\n----------\n"
        "The author of this method wrote it for the first time.\n\nNotes\n-----\n"
        "This is what the reader has to know of it."
    )
    assert prose_sentences(text) == [
        "What it does is said here in a sentence.",
        "This is what the reader has to know of it.",
    ]


def test_the_language_reference_keeps_its_prose():
    topic = (
        'The "assert" statement\n**********************\n\nAssert statements are a convenient way to insert '
        'debugging\nassertions into a program:\n\n   assert_stmt ::= "assert" expression\n\nThe simple form, '
        '"assert expression", is what\nis used most.\n'
    )
    assert prose_sentences(topic) == [
        "Assert statements are a convenient way to insert debugging assertions into a program:",
        'The simple form, "assert expression", is what is used most.',
    ]


def test_paragraphs_of_fields_lose_their_marks():
    assert list(paragraphs("Do it.\n\n:param x: the thing\n    to do\n:returns: nothing")) == [
        "Do it.",
        "the thing to do",
        "nothing",
    ]


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        ("See :class:`~numpy.ndarray` and :ref:`the notes <notes>`.", "See numpy.ndarray and the notes."),
        ("Call ``run()`` on *this* or **that** [3]_.", "Call run on this or that."),
        ("Read `the manual <https://x.org>`_ -- slowly.", "Read the manual – slowly."),
        ("It goes like this::", "It goes like this:"),
        ("It runs.::", "It runs."),
        ("It was found early ([Smith2010]_, [2]_).", "It was found early."),
    ],
)
def test_markup_is_taken_off(marked, plain):
    assert without_markup(marked) == plain


@pytest.mark.parametrize(
    "sentence",
    [
        "This is a sentence with the usual words.",
        'He said "yes" (and meant it) to all of us.',
        "The following cases are of interest:",
        "This is the end.",
        "The " + "end of the " * 32 + "very long list.",  # 100 words
        "The x2 is here.",  # three quarters are plain words
        "The nouns verbs adjectives adverbs pronouns articles numerals.",  # an eighth are common ones
    ],
)
def test_english_is_prose(sentence):
    assert is_prose(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "the first letter is a small one.",
        "This one has no end",
        "Too short this.",
        "If x = 3 then this is code.",
        "The bracket (is not closed in this one.",
        'The quote "is not closed in this one.',
        "Nouns Verbs Adjectives Adverbs Pronouns Articles.",
        "Foo_bar baz_2 x.y.z q1 of w_e r_t y_u.",
        "See https://example.org for all of this.",
        "As proved in \\ the sum is finite.",
        "The " + "word " * 100 + "is said too often.",
        "The " + "end of the " * 33 + "list.",  # 101 words
        "The x2 and y2 are here too z2.",  # five eighths are plain words
        "The nouns verbs adjectives adverbs pronouns articles numerals prepositions.",  # a ninth
    ],
)
def test_what_is_not_english_is_not_prose(sentence):
    assert not is_prose(sentence)
