# %% [markdown]
r"""
# 07 · WordPiece

BERT never sees a text. It sees the numbers of tokens, which are words or pieces of words from a list that was fixed before
training began. How text becomes tokens decides what the model can know about it, and most surprises with BERT in practice
begin here.

**You will** split a text into words as BERT does · cut words into pieces · say what the ## is and when a whole word turns into
[UNK] · learn a vocabulary from text, merge by merge · see what its size costs. You write three of the functions yourself.

**Before this:** plain Python; [06 · Embeddings](06_embeddings.ipynb) for what a token's number is used for.
**Time:** 80 minutes with the exercises; it runs in seconds.

| letter | in this notebook |
|---|---|
| `V` | vocabulary: how many different tokens there are |
| `H` | hidden size: the numbers that the model's table holds for each of them |
"""

# %%
import inspect
import unicodedata

import matplotlib.pyplot as plt
import numpy as np

from minibert import BertTokenizer, check, plots
from minibert.course import read_log
from minibert.course.exercises.n07_wordpiece import CORPORA, pair_counts, replace_pair
from minibert.text import normalise as normalise_module
from minibert.text.learn import count_words, learn_vocabulary
from minibert.text.normalise import ASCII_PUNCTUATION, Normaliser
from minibert.text.wordpiece import WordPiece

plots.notebook_style()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

# %% [markdown]
r"""
## 1. Why pieces of words?

We need a text to learn from. Everybody who runs this notebook has one: the English documentation of Python and of the packages that
minibert needs. Here are its words and how often each occurs. Every twentieth document is **held out**, to see
what happens to text that the vocabulary was not made from. (The counts are stored, so that your numbers are the ones in
this text. `RERUN` counts the documentation that *you* have.)
"""

# %%
RERUN = False  # True: count the words of the installed documentation; some ten seconds


def count_documentation():
    from minibert.data.embedded import embedded_documents

    documents = embedded_documents()
    held_out = documents[::20]
    training = [document for i, document in enumerate(documents) if i % 20]
    for name, chosen in (("training", training), ("held out", held_out)):
        counts = count_words((sentence for d in chosen for sentence in d), Normaliser())
        yield {"text": name, "counts": dict(counts.most_common())}


log = count_documentation() if RERUN else read_log("07_words.jsonl")
training, held_out = (record["counts"] for record in log)
for name, counts in (("training", training), ("held out", held_out)):
    print(f"{name}: {sum(counts.values()):,} words, {len(counts):,} different ones")
print("most frequent:", *list(training)[:12])

# %% [markdown]
r"""
What should a token be? There are two obvious answers, and one between them. There are few **characters**, but a text becomes long,
and the model has to learn spelling first. With **words**, the text is short, but there is no end of words: whatever is not in the list
is *unknown*, and its meaning is lost. With **pieces** of words (*subwords*), frequent words stay whole, rare words are split, and
only a word with a new character is unknown.
"""

# %%
total = sum(held_out.values())
vocabulary = learn_vocabulary(training, 8192, SPECIAL)  # a list; section 7 shows how
wordpiece = WordPiece({token: i for i, token in enumerate(vocabulary)}, vocabulary.index("[UNK]"))
listed = set(list(training)[:8192])

characters = sum(count * len(word) for word, count in held_out.items())
unknown = sum(count for word, count in held_out.items() if word not in listed)
pieces = sum(count * len(wordpiece.ids(word)) for word, count in held_out.items())
print("held-out text, a token is      tokens per word  unknown words")
print(f"a character                    {characters / total:13.2f}    {0:12.1%}")
print(f"a word, the 8,192 commonest    {1:13.2f}    {unknown / total:12.1%}")
print(f"a piece, 8,192 of them         {pieces / total:13.2f}    {0:12.1%}")
assert RERUN or all(wordpiece.ids(word) != wordpiece.unknown for word in held_out)

# %% [markdown]
r"""
2.2 % does not sound like much, but about every second sentence of 30 words has an unknown word, and such words tend to be those that
a text is about. Pieces lose none of them, for 5 % more tokens.

Two steps lead from text to pieces: *normalise* the text into words, then *cut* each word.

## 2. From text to words

The same word can be written in many ways: HELLO, Hello, hello. And é can be one character, or an e followed by an accent.
All of these would be different tokens, each learned from fewer examples. So BERT (this one, "uncased") makes them alike:

1. Control characters are removed; tabs, line ends and all kinds of spaces become a space.
2. Spaces are put around each Chinese character, as Chinese is written without spaces.
3. Accents are removed.
4. Capitals become lower-case letters.
5. Every punctuation character becomes a word of its own. Words end at spaces.
"""

# %%
normaliser = Normaliser()
for text in ("Héllo,\tWORLD!", "don't", "C++ costs $5", "東京 is Tokyo", "zero\u200bwidth"):
    print(f"{text!r:<22}", normaliser.words(text))

# %% [markdown]
r"""
How do you remove an accent? Unicode can write é in two ways, and the normal form NFD is the longer one: the letter, then the
accent as a character of its own, of the category `Mn` ("mark, nonspacing"). Then the accent only has to be left out.
"""

# %%
for character in unicodedata.normalize("NFD", "é"):
    category = unicodedata.category(character)
    print(f"U+{ord(character):04X}  {category}  {unicodedata.name(character)}")

# %% [markdown]
r"""
And what is punctuation? In Unicode, it is the categories that begin with P. `$`, `+`, `<`, `=` and a few more are not among them,
as they count as symbols. BERT treats every sign of ASCII as punctuation:
"""

# %%
others = (c for c in ASCII_PUNCTUATION if not unicodedata.category(c).startswith("P"))
print("punctuation for BERT, not for Unicode:", *sorted(others))

# %% [markdown]
r"""
All this loses something that cannot be recovered. An uncased model gets "us" for *US* as well as for *us*, and
cannot tell the country from the pronoun by its spelling. Where that matters (names, German nouns), people use a *cased* model, which leaves out steps 3 and 4:
"""

# %%
cased = Normaliser(lowercase=False)
for text in ("US and us", "Polish or polish?", "résumé, resume"):
    print(f"{text!r:<22}", normaliser.words(text), " cased:", cased.words(text))

# %% [markdown]
r"""
## 3. Your turn: normalise

@exercise 07.normalise

Write steps 3, 4 and 5: from a text to the list of its words. `ASCII_PUNCTUATION` is the set of the signs above and all other
punctuation of ASCII.
"""


# %% tags=["solution"]
def my_normalise(text):
    """The words of a text, as a list: no accents, no capitals, each punctuation character alone."""
    out = []
    for char in unicodedata.normalize("NFD", text.lower()):
        category = unicodedata.category(char)
        if category == "Mn":
            continue
        is_punctuation = category.startswith("P") or char in ASCII_PUNCTUATION
        out.append(f" {char} " if is_punctuation else char)
    return "".join(out).split()


# %%
check("07.normalise", my_normalise)

# %% [markdown] tags=["answer"]
r"""
The library does the same in two passes, before and after NFD. What becomes of a character does not depend on its
neighbours. So the result for each character is computed once and then looked up (`str.translate`).
(`text.lower()` differs in one letter: it makes ς of a capital Σ at the end of a word. Character by character, Σ always becomes σ.)
"""

# %% tags=["answer"]
print(inspect.getsource(normalise_module._clean))
print(inspect.getsource(normalise_module._finish))

# %% [markdown]
r"""
## 4. What does the double hash mean?

Now take a word and a vocabulary. WordPiece is **greedy**: it takes the longest piece that the word begins with, then the
longest piece that the rest begins with, and so on. A piece *inside* a word is written with ## in front. It is a different token
from the same letters at the beginning:
"""


# %%
def pieces_of(word, vocabulary):
    """The pieces of a word, as the library cuts it; vocabulary is a list of tokens."""
    ids = WordPiece({token: i for i, token in enumerate(vocabulary)}, vocabulary.index("[UNK]"))
    return [vocabulary[i] for i in ids.ids(word)]


SMALL = "[UNK] un able play ##aff ##able ##s ##ing ##er".split()
for word in ("unaffable", "able", "players", "unplay"):
    print(f"{word:<10}", pieces_of(word, SMALL))

# %% tags=["figure"]
# Caption: The look-ups for one word, from top to bottom. Blue pieces are found; what remains is looked
#   up with ## in front.
WORD, CUTS = "unaffable", [(0, 2), (2, 5), (5, 9)]
attempts = [(start, end) for start, stop in CUTS for end in range(len(WORD), stop - 1, -1)]
figure, axes = plt.subplots(figsize=(7.5, 4.0))
for line, (start, end) in enumerate(attempts):
    found = (start, end) in CUTS
    for i in range(start, end):
        colour = plots.BLUE if found else "#dddddd"
        axes.add_patch(plt.Rectangle((i, line), 0.96, 0.88, color=colour))
        style = {"color": "white" if found else plots.GREY, "fontsize": 9.5}
        axes.text(i + 0.48, line + 0.46, WORD[i], ha="center", va="center", **style)
    piece = ("##" if start else "") + WORD[start:end]
    note = f"{piece}   yes" if found else piece
    weight = "bold" if found else "normal"
    axes.text(9.4, line + 0.46, note, va="center", fontsize=9.5, weight=weight)
axes.set(
    xlim=(-0.2, 13), ylim=(len(attempts), -0.1), title="unaffable: what is looked up, in this order"
)
axes.axis("off")
plt.show()

# %% [markdown]
r"""
There are fourteen look-ups, of which three succeed. Most words are matched in one piece.

**Why have ##?** For two reasons. First, it makes cutting reversible: `un able` is two words, and `un ##able` is one. Second, the
ending of "unaffable" means something different from the word "able". They are different tokens, so they have different ids and
different rows in the table of [06](06_embeddings.ipynb), and the model can learn different things about them. Here are examples from
the vocabulary that we learned from the documentation:
"""

# %%
for piece in ("able", "##able", "form", "##form"):
    print(f"{piece:<8} id {vocabulary.index(piece):5}")

# %% [markdown]
r"""
## 5. Your turn: cut a word

@exercise 07.wordpiece

Cut a word into pieces of the vocabulary: greedily, from the left, with ## on all pieces but the first. If you come to a place where no
piece fits, not even one of a single character, the answer for the *whole word* is `["[UNK]"]`. The next section explains why the rule
is so harsh.
"""


# %% tags=["solution"]
def my_wordpiece(word, vocabulary):
    """The pieces of a word, as a list of strings; vocabulary is a set of strings."""
    pieces, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start > 0 else "") + word[start:end]
            if piece in vocabulary:
                break
        else:
            return ["[UNK]"]
        pieces.append(piece)
        start = end
    return pieces


# %%
check("07.wordpiece", my_wordpiece)

# %% tags=["answer"]
print(inspect.getsource(WordPiece.ids))

# %% [markdown]
r"""
## 6. Why does a whole word become [UNK]?

There are three causes. **One: a character that is not in the vocabulary.** A word ends at a space or at punctuation. An emoji is
neither, so "great😊" is *one* word, and no piece fits its last character:
"""

# %%
tokenizer = BertTokenizer(vocabulary)
for text in ("it was great😊", "it was great 😊", "Übergröße", "Ubergrosse"):
    print(f"{text:<18}", tokenizer.tokenize(text))

# %% [markdown]
r"""
"great" is lost with it. The second line shows the remedy, a space. In the third line, Ü and ö have become u and o, but ß is not a
letter with an accent. The vocabulary has `ß`, but no `##ß`, because ß never occurred inside a word of the training text.

**Two: greed.** WordPiece takes the longest piece and never gives it back, even if a shorter one would have worked. **Three:
more than 100 characters.** This limit (200 in the original) protects against nonsense that would take long to search:
"""

# %%
GREEDY = ["[UNK]", "ab", "abc", "##cd"]
print("abcd     →", pieces_of("abcd", GREEDY), "  though ab + ##cd would do")
for length in (100, 101):
    tokens = tokenizer.tokenize(length * "a")
    print(f"{length} × a  → {len(tokens):3} tokens:", *tokens[:6])

# %% [markdown]
r"""
**And why the whole word?** One could keep the pieces before the problem. But `un [UNK]` begins like "unaffable" and like
"under", whatever the word was. No information is safer than wrong information.

How often does it happen? A vocabulary that was *learned* contains every single character of its text, also with ## if the
character occurred inside a word. So greedy cutting finds no dead end in words of known characters, and none of the held-out words is
unknown. The only problems left are characters that are new, or new inside a word:
"""

# %%
inside = {token[2:] for token in vocabulary if token.startswith("##") and len(token) == 3}
alone = [token for token in vocabulary if len(token) == 1]
print(len(alone), "characters can begin a word,", len(inside), "can stand inside one. Only begin:")
print(*(character for character in alone if character not in inside))
assert all(set(word[1:]) <= inside and word[0] in alone for word in training)

# %% [markdown]
r"""
## 7. Where the vocabulary comes from

Start with characters, and let the most frequent pair of neighbours become a token. Do this again and again, until
there are as many tokens as you want. That is all. (Sennrich et al., 2016, called it byte-pair encoding.) Here are five
words, cut into characters, with how often each occurs, and below them the counts of the pairs:
"""

# %%
words = CORPORA["hug, pug, pun, bun, hugs"]
for tokens, count in words.items():
    print(f"{count:3} × ", *tokens)
print()
for pair, count in pair_counts(words).most_common():
    print(f"{count:3} × ", *pair)

# %% [markdown]
r"""
A pair occurs as often as the words that contain it. `##u ##n` occurs in *pun* (12 times) and in *bun* (14 times). That makes 26, more
than any other pair. So `##un` becomes a token, and the words are now `p ##un` and `b ##un`. Then count again.

(You may read that WordPiece takes the pair with the highest count(pair) / (count(left) · count(right)) instead. The program
behind Google's vocabularies was never published. The program with which BERT vocabularies are made today goes by frequency, and
so do we.)

## 8. Your turn: one merge

@exercise 07.merge_once

`words` is a dictionary like the one above. Find the pair that is merged next, and return it with the new dictionary. If several pairs
are equally frequent, take the first in alphabetical order (as Python sorts tuples), so that the result does not depend on the order
of the texts. `pair_counts(words)` and `replace_pair(tokens, pair, token)` are given. What is the new token called?
"""


# %% tags=["solution"]
def my_merge_once(words):
    """The most frequent pair of neighbours, and the words with this pair as one token.

    words: {tuple of tokens: how often the word occurs}. Returns (left, right) and a new dictionary.
    """
    counts = pair_counts(words)
    left, right = best = min(counts, key=lambda pair: (-counts[pair], pair))
    token = left + right.removeprefix("##")
    return best, {replace_pair(tokens, best, token): count for tokens, count in words.items()}


# %%
check("07.merge_once", my_merge_once)

# %% [markdown]
r"""
The library does the same, only faster: it remembers which words contain each pair, and looks only at those. Here are five merges, and
the words after each:
"""

# %%
FIVE = {"hug": 10, "pug": 5, "pun": 12, "bun": 14, "hugs": 5}
characters = len(learn_vocabulary(FIVE, 1000, SPECIAL, min_frequency=1000))  # no merge at all
for merges in range(6):
    learned = learn_vocabulary(FIVE, characters + merges, SPECIAL, min_frequency=1)
    new = learned[-1] if merges else ""
    print(f"{new:<5}", " | ".join(f"{' '.join(pieces_of(word, learned)):<11}" for word in FIVE))

# %% [markdown]
r"""
## 9. A vocabulary grows

Now for the documentation. Each merge adds one token at the end of the list. So a smaller vocabulary is the beginning of a
larger one, and we can watch how a word is put together:
"""

# %%
for size in (150, 200, 300, 500, 1000, 2000, 4000, 8192):
    known, unseen = (pieces_of(word, vocabulary[:size]) for word in ("documentation", "unaffable"))
    print(f"V = {size:4}   {' '.join(known):<35} {' '.join(unseen)}")
assert learn_vocabulary(training, 1000, SPECIAL) == vocabulary[:1000]

# %% [markdown]
r"""
*documentation* soon becomes one token. *unaffable*, which does not occur in that text, never does. And `una ##ff ##able` shows that
pieces are neither syllables nor prefixes: the algorithm knows no language, it only counts. Whether a word stays whole depends on
how frequent it was in *that* text:
"""

# %%
ranked = list(training)  # the most frequent first
CLASSES = {
    "1 to 100": set(ranked[:100]),
    "101 to 1,000": set(ranked[100:1000]),
    "1,001 to 5,000": set(ranked[1000:5000]),
    "beyond 5,000": set(ranked[5000:]),
    "not in it at all": set(held_out) - set(training),
}
lengths = [
    np.mean([len(wordpiece.ids(word)) for word in held_out if word in of_class])
    for of_class in CLASSES.values()
]

# %% tags=["figure"]
# Caption: How many pieces a held-out word is cut into, by its frequency in the training text.
figure, axes = plt.subplots(figsize=(7.0, 2.8))
axes.barh(list(CLASSES), lengths, color=plots.BLUE, height=0.6)
for line, length in enumerate(lengths):
    axes.text(length + 0.03, line, f"{length:.2f}", va="center")
axes.invert_yaxis()
axes.set(
    title="pieces of a held-out word, V = 8,192",
    xlabel="pieces",
    ylabel="rank in the training text",
)
axes.grid(False, axis="y")
plt.show()

# %% [markdown]
r"""
A vocabulary depends on the text from which it was learned. Here is the same tokenizer on a sentence of the same kind, and on two of
other kinds:
"""

# %%
for sentence in (
    "The array is sorted in place, and the indices are returned.",
    "She murmured a melancholy lullaby to the drowsy kittens.",
    "The patient's haemoglobin fell after the appendectomy.",
):
    tokens = tokenizer.tokenize(sentence)
    print(f"{len(sentence.split()):2} words, {len(tokens)} tokens:", *tokens)

# %% [markdown]
r"""
Sequences get longer (there is room for 512 tokens), and each piece, shared by many words, says little by itself. So a
vocabulary should be learned from the kind of text that the model will read. It cannot be exchanged later: the model's table has a row
for each of its tokens, in this order.

## 10. How large should it be?
"""

# %%
SIZES = (120, 150, 200, 300, 500, 1000, 2000, 4000, 8192, 14000)
larger = learn_vocabulary(training, max(SIZES), SPECIAL)
tokens_a_word = {"training": [], "held out": []}
for size in SIZES:
    smaller = WordPiece({token: i for i, token in enumerate(larger[:size])}, 1)
    for name, counts in (("training", training), ("held out", held_out)):
        tokens = sum(count * len(smaller.ids(word)) for word, count in counts.items())
        tokens_a_word[name].append(tokens / sum(counts.values()))

# %% tags=["figure"]
# Caption: A larger vocabulary makes texts shorter, but each doubling gains less.
figure, axes = plt.subplots(figsize=(7.0, 3.2))
for (name, values), marker in zip(tokens_a_word.items(), "os", strict=True):
    axes.semilogx(SIZES, values, marker=marker, label=name)
axes.axhline(1, color=plots.GREY, linestyle="--", linewidth=1)
axes.text(120, 1.06, "every word whole", color=plots.GREY, fontsize=9)
axes.set(
    title="length of the text in tokens",
    xlabel="size of the vocabulary V",
    ylabel="tokens per word",
)
axes.set_xticks([100, 300, 1000, 3000, 10000], ["100", "300", "1,000", "3,000", "10,000"])
axes.minorticks_off()
axes.set_ylim(0.8, 4.3)
axes.legend()
plt.show()

# %% [markdown]
r"""
The first thousand tokens bring the 4.1 characters of a word down to 1.5 tokens. From 8,192 to 14,000 there is almost nothing left to
gain. But every token costs a row of `H` numbers that has to be learned. From how many examples? Cut the training text with the
vocabulary that was made from it, and count.
"""

# %%
uses = np.zeros(len(vocabulary), dtype=int)  # (V,)
for word, count in training.items():
    for i in wordpiece.ids(word):
        uses[i] += count

learned = np.arange(len(vocabulary)) >= len(SPECIAL)  # (V,)
never = [vocabulary[i] for i in np.flatnonzero(learned & (uses == 0))]
print(f"the 100 most used: {np.sort(uses)[::-1][:100].sum() / uses.sum():.0%} of the text")
print(f"used fewer than 10 times: {(learned & (uses < 10)).sum():,} tokens")
print(f"never used: {len(never)} tokens, such as", *never[3:11])
assert RERUN or ("##ribut" in never and {"distribution", "attribute"} <= set(vocabulary))

# %% tags=["figure"]
# Caption: Tokens that were learned late are rare. Those that are never used were steps towards longer tokens.
ids = np.flatnonzero(learned)
some = uses[ids] > 0
figure, axes = plt.subplots(figsize=(7.0, 3.4))
axes.scatter(ids[some], uses[ids][some], s=3, linewidths=0, color=plots.BLUE, label="used")
axes.scatter(
    ids[~some], 0 * ids[~some], s=3, linewidths=0, color=plots.VERMILION, label="never used"
)
axes.set_yscale("symlog", linthresh=1)
axes.set_yticks([0, 1, 10, 100, 1000, 10000], ["0", "1", "10", "100", "1,000", "10,000"])
axes.set(title="how often each token is used in the training text", ylabel="uses")
axes.set_xlabel("id: tokens in the order in which they were learned")
axes.legend(markerscale=3)
plt.show()

# %% [markdown]
r"""
The later a token was learned, the rarer it is: the upper edge shows how often the pair occurred when it was merged. Later
merges take uses away, and sometimes all of them. (A few dots lie above the edge, as greedy cutting is not bound to the merges; see
question 2.) `##ribut` was a step on the way to *distribution* and *attribute*. Once these were tokens themselves, nothing was left for
it to do, and nothing for its row to learn from. (BERT's 30,522 tokens served 3,300 million words; here we have 0.8 million.)

## 11. The whole tokenizer

`BertTokenizer` puts it all together, and adds what the model needs: [CLS] in front, [SEP] after each text, and [PAD] up to a common
length. It is made from a vocabulary, or learns one with `BertTokenizer.train(texts, vocab_size)`.
"""

# %%
encoded = tokenizer(
    "Sorted in place.", "The array is unaffable.", max_length=16, padding="max_length"
)
print(*(tokenizer.tokens[i] for i in encoded["input_ids"]))
for name, row in encoded.items():
    print(f"{name:<15}", *(f"{value:4}" for value in row))

# %% [markdown]
r"""
Where in the text is a token? Tasks that mark something in a text (names, answers) need to know this:
"""

# %%
text = "Héllo, unaffable WORLD"
ids, spans = tokenizer.token_ids_with_spans(text)
for i, (start, stop) in zip(ids, spans, strict=True):
    print(f"{tokenizer.tokens[i]:<8} {start:2} to {stop:2}  {text[start:stop]!r}")

# %% [markdown]
r"""
And back again. The text cannot be restored (capitals, accents and spaces are gone), but its ids can:
"""

# %%
print(tokenizer.decode(ids))
assert tokenizer.token_ids(tokenizer.decode(ids)) == ids

# %% [markdown]
r"""
## Recap

- A text is first normalised (no capitals, no accents, punctuation separate). Then each word is cut, greedily, from the left.
- The ## marks a piece inside a word. `able` and `##able` are two tokens with two rows.
- A word is [UNK] as a whole if it cannot be cut to its end. With a learned vocabulary, that is usually because of a character that
  is new.
- The vocabulary is learned by merging the most frequent pair, again and again. Frequent words end up whole.
- The vocabulary belongs to the model: row `i` of the table means token `i` of this list and no other.

## What usually goes wrong

- **Another model's vocabulary.** Every id is valid and nothing fails, but the model reads nonsense. Keep model and vocabulary in one
  folder.
- **A word is not a token.** Labels, positions and lengths count tokens, and 512 tokens are fewer than 512 words.
- **An unknown emoji, letter or sign attached to a word.** The whole word becomes [UNK]. Count the [UNK] in your data before training.
- **Cased and uncased mixed up.** With a cased vocabulary and lower-cased text, no name is found.
- **[SEP] written by a user.** In a text, it becomes the real token. With `protect_special_tokens=False`, it becomes letters and
  brackets.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> The vocabulary is "[UNK] a b ab ##a ##b ##ab". How is "abab" cut? And "bab"? Which words of a and b can be
[UNK]?</summary>

`ab ##ab` and `b ##ab`. None can (up to 100 characters): each single character is there, with and without ##, so some piece always
fits.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> Learning merges pairs, but cutting is greedy. Is a word of the training text always cut into the pieces that the
merges made of it?</summary>

No. Suppose the merges made a ##bc of "abc", while another word gave the token ab. Greedy cutting finds the longer
beginning, ab, and then ##c. All of these are pieces of the vocabulary, and the model only ever sees the greedy cut. (Other tokenizers,
for instance that of GPT-2, replay the merges.)

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> Your texts are full of one word that the model's vocabulary cuts into six pieces. What does that cost, and why
not add the word to the list?</summary>

It costs six of the 512 places each time. The model has to put the pieces together, which it has learned to do with other words. A new
token is a new row of the table, with random numbers. If you have much text for further pre-training, it can become worth more than
the pieces. With only a few examples, it remains noise.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Schuster and Nakajima, [Japanese and Korean voice search](https://doi.org/10.1109/ICASSP.2012.6289079), 2012: where WordPiece comes from.
- Sennrich, Haddow and Birch, [Neural machine translation of rare words with subword units](https://arxiv.org/abs/1508.07909), 2016: byte-pair encoding.
- Wu and others, [Google's neural machine translation system](https://arxiv.org/abs/1609.08144), 2016: WordPiece in a large system.
- Kudo and Richardson, [SentencePiece](https://arxiv.org/abs/1808.06226), 2018: subwords straight from raw text.
- Song and others, [Fast WordPiece tokenization](https://arxiv.org/abs/2012.15524), 2020: the greedy match in linear time.

**Next:** [08 · Attention](08_attention.ipynb), where the tokens look at each other. The code of this notebook:
[normalise.py](../minibert/text/normalise.py), [wordpiece.py](../minibert/text/wordpiece.py),
[learn.py](../minibert/text/learn.py), [bert_tokenizer.py](../minibert/text/bert_tokenizer.py), [tokenizer.py](../minibert/text/tokenizer.py).
"""
