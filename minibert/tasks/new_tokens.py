"""New tokens for a model that has learned already: the tokenizer's, and the model's rows for them."""

from collections.abc import Sequence
from itertools import islice

import numpy as np

from minibert.arrays import to_numpy
from minibert.bert import BertConfig
from minibert.bert.embeddings import BertEmbeddings
from minibert.bert.heads import BertLMPredictionHead
from minibert.data import Corpus, training_sentences
from minibert.nn import Module, Parameter
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.text import PretrainedTokenizer
from minibert.text.new_tokens import add_tokens, learn_new_tokens, read_new_tokens, tokens_per_word

MEASURED = 100_000  # sentences whose tokens are counted, at most


def with_new_tokens(
    settings: PretrainSettings, corpus: Corpus, old: PretrainedTokenizer, progress: bool = False
) -> PretrainedTokenizer:
    """The tokenizer with the tokens that the settings ask for: a file's, then those learned from the corpus.

    Only the documents to train on are learned from. Prints what was added, and how much shorter texts become.
    """
    tokenizer = old
    if settings.add_tokens is not None:
        found = read_new_tokens(settings.add_tokens, tokenizer)
        tokenizer = add_tokens(tokenizer, found.tokens)
        print(f"{settings.add_tokens}: {found.describe()}", flush=True)
    if settings.learn_tokens is not None:
        sentences = training_sentences(corpus, **settings.split)
        learned = learn_new_tokens(sentences, tokenizer, settings.learn_tokens, progress=progress)
        tokenizer = add_tokens(tokenizer, learned)
        some = ", ".join(tokenizer.as_text(token).strip() for token in learned[:8])
        print(f"words of the corpus that become tokens: {len(learned):,} ({some}, …)", flush=True)
    sample = islice(training_sentences(corpus, **settings.split), MEASURED)
    before, after = tokens_per_word(sample, old, tokenizer)
    added = len(tokenizer) - len(old)
    print(f"new tokens: {added:,}; tokens per word: {before:.3f} before, {after:.3f} now", flush=True)
    return tokenizer


def add_rows(model: Module, pieces: Sequence[Sequence[int]], first: int) -> None:
    """Give a model the tokens ``first``, ``first`` + 1, …, each so far the ids in one of ``pieces``.

    A new row of the word embeddings is the mean of its pieces' rows, and so is a new bias of the masked-word
    head. Since the head's matrix is the table of embeddings, the score of a new word is then the mean of the
    scores of its pieces p, whatever the hidden state h is:

        h · mean(eₚ) + mean(bₚ) = mean(h · eₚ + bₚ)

    In other words, its unnormalised probability is the geometric mean of theirs. So a new word is never
    likelier than its likeliest piece, and a word of frequent pieces that has nothing to do with h does not
    come up. (The log of the mean of exp(bₚ), the other candidate, follows the most frequent piece alone.)

    Rows that a model has beyond its vocabulary are used first. The model may be of any family. Its gradients
    are lost, and it needs a new optimiser.
    """
    parameters, configs = _of_words(model)
    size = max(first + len(pieces), parameters[0].shape[0])
    for parameter in parameters:
        old = to_numpy(parameter.value)
        new = np.zeros((size, *old.shape[1:]), old.dtype)
        new[: len(old)] = old
        for row, ids in enumerate(pieces, first):
            new[row] = old[list(ids)].mean(axis=0)
        parameter.resize(new)
    for config in configs:
        config.vocab_size = size
    model.allocate(model.device, model.dtype, model.precision.name, first_values=False)


def _of_words(model: Module) -> tuple[list[Parameter], list[BertConfig]]:
    """What has a row or a number for each word, each once, and the configurations that say how many."""
    parameters: dict[int, Parameter] = {}
    configs: dict[int, BertConfig] = {}
    for module in model.modules():
        if isinstance(module, BertEmbeddings):
            parameters[id(module.word_embeddings.weight)] = module.word_embeddings.weight
        elif isinstance(module, BertLMPredictionHead):
            parameters[id(module.bias)] = module.bias
        if isinstance(config := getattr(module, "config", None), BertConfig):
            configs[id(config)] = config
    return list(parameters.values()), list(configs.values())
