"""Padding that is left out: the encoder then computes real tokens only, packed one after the other.

The rows of a batch are as long as its longest text, and what follows the shorter ones is padding. No token
sees it, but every layer would compute it. So it is left out where the encoder begins, and put back, as zeros,
where it ends. In between every row (T of them) is a token of some text, and attention stays within a text
(``ops.unpadded_attention``). The numbers of real tokens are the same but for rounding.
"""

from minibert import ops
from minibert.arrays import Array, get_array_module
from minibert.nn.context import Context
from minibert.nn.places import EVERYWHERE, Places


def padding_to_leave_out(
    attention_mask: Array, hidden: Array, context: Context, needed: bool = False
) -> Places:
    """The places of the real tokens of this batch, mask (B, S), if padding is left out; otherwise all.

    ``hidden`` shows the library and the dtype. By default padding is left out where there is a kernel for it;
    the context may say otherwise (``Context.with_padding``). It always stays where it is ``needed``; where
    somebody observes, who sees all places; and in a batch in which a row does not begin with a token, since a
    head may read the first place.
    """
    shape = attention_mask.shape
    chosen = context.padding
    stays = not ops.has_kernel("unpadded_attention", hidden) if chosen is None else chosen
    if needed or stays or context.observed or attention_mask.all() or not attention_mask[:, 0].all():
        return EVERYWHERE
    return Places(shape, *rows_to_encode(attention_mask))


def rows_to_encode(attention_mask: Array) -> tuple[Array, Array]:
    """The real tokens of a batch, mask (B, S), text by text → their rows b·S + s (T,), and starts (B + 1,).

    The texts are ordered by their length, so that attention can treat those of equal length together.
    """
    xp = get_array_module(attention_mask)
    lengths = attention_mask.sum(axis=1)  # (B,)
    order = xp.argsort(lengths, kind="stable")
    rank = xp.argsort(order)  # (B,): that of each text
    keys = xp.where(attention_mask > 0, rank[:, None], len(rank))  # (B, S): padding comes last
    rows = xp.argsort(keys.reshape(-1), kind="stable")[: int(lengths.sum())]
    return rows, xp.concatenate([xp.zeros(1, dtype=lengths.dtype), xp.cumsum(lengths[order])])
