"""Filling in masked words."""

from typing import Any

import numpy as np

from minibert import ops
from minibert.arrays import to_numpy
from minibert.bert import BertForPreTraining
from minibert.bert.heads import BertLMPredictionHead
from minibert.errors import UserError
from minibert.nn import Context
from minibert.tasks.shared import check_numbers
from minibert.text import PretrainedTokenizer
from minibert.variants.permutations import hidden_tokens
from minibert.variants.xlnet import XLNetLMHeadModel


def masked_word_head(model: BertForPreTraining) -> BertLMPredictionHead:
    """The head of a model that predicts masked words. Raises UserError if it does not."""
    head = getattr(getattr(model, "cls", None), "predictions", None)
    if head is None:
        raise UserError(f"{type(model).__name__} has no head for masked words; use BertForMaskedLM")
    if model.config.is_decoder:
        raise UserError(
            "this model has learned left to right: it sees nothing after a masked word; use one that has "
            "learned from masked words"
        )
    return head


def fill_mask(
    model: BertForPreTraining, tokenizer: PretrainedTokenizer, text: str, top_k: int = 5
) -> list[list[tuple[str, float]]]:
    """The ``top_k`` likeliest tokens for each [MASK] in ``text``, with their probabilities, best first.

    ``model`` is any that predicts masked words; it is put into evaluation mode. Several masks are each
    guessed without knowing the other guesses, as in training. The probabilities are the softmax over all V
    rows of the model; a row beyond the vocabulary, which has no token, is never a guess.

    An XLNet guesses as it was trained: from the query of a place (``target_mapping``), with the masks hidden
    from all tokens (``perm_mask``). Without these arguments, transformers scores the content of <mask>
    instead: of a token that no text in the training had, from a stream that no loss has taught to predict.

    Raises UserError if the model has no such head or reads from left to right, if there is no [MASK]
    (RoBERTa: <mask>), if the text is longer than the model's positions, if the vocabulary has more tokens
    than the model, or if the model's scores are NaN.
    """
    masked_word_head(model)
    tokenizer.check_size(model.config.vocab_size)
    most = len(tokenizer)
    if top_k not in range(1, most + 1):
        raise UserError(f"top_k must be a whole number from 1 to {most}, the number of tokens; got {top_k}")
    encoded = tokenizer([text])
    ids = np.array(encoded["input_ids"])  # (1, S)
    masks = np.flatnonzero(ids[0] == tokenizer.mask_id)  # (N,)
    if not len(masks):
        mask = tokenizer.special_tokens["mask_token"]
        raise UserError(f"no {mask} in {text!r}; write {mask} in place of a word")
    model.eval()
    queries = isinstance(model, XLNetLMHeadModel)
    batch: dict[str, Any] = {"input_ids": ids, "token_type_ids": encoded["token_type_ids"]}
    batch |= hidden_tokens(ids == tokenizer.mask_id, masks[None]) if queries else {}
    outputs, _ = model.forward(**batch, context=Context(backward=False))
    scores = outputs.prediction_logits[0]  # (N, V) of an XLNet, else (S, V)
    logits = scores if queries else scores[model.device.asarray(masks)]  # (N, V)
    probabilities = to_numpy(ops.softmax(logits)[0])[:, :most]
    check_numbers(probabilities)
    best = np.argsort(-probabilities, axis=-1, kind="stable")[:, : int(top_k)]  # (N, top_k)
    return [
        [(tokenizer.token_text(token), float(row[token])) for token in tokens]
        for row, tokens in zip(probabilities, best, strict=True)
    ]
