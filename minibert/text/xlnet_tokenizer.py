"""XLNetTokenizer: text to the pieces of XLNet's vocabulary, with the behaviour of Hugging Face's."""

from collections.abc import Sequence
from typing import ClassVar

from minibert.text.unigram_files import AddedToken
from minibert.text.unigram_tokenizer import UnigramTokenizer


class XLNetTokenizer(UnigramTokenizer):
    """Unigram tokenizer of XLNet: A <sep> <cls>, or A <sep> B <sep> <cls>, padded on the left.

    Args:
        pieces: (token, log probability); a token's id is its index. They must hold <s>, </s>, <unk>, <sep>,
            <pad>, <cls> and <mask>.
        lowercase: see `MetaspaceNormaliser`. Accents are always dropped, as in transformers 5, whatever a
            folder's ``keep_accents`` says.
        charsmap: the compiled rules of normalisation that SentencePiece's models bring, see `CharacterMap`.
        added_tokens: tokens that are found in a text before anything else, besides the special ones; without
            them, <eop> and <eod>.
        model_max_length: the max_length of ``truncation=True`` and ``padding="max_length"`` if none is given.

    The token types are 0 up to the first <sep>, 1 up to the second, and 2 for <cls>. Padding has 0, as in
    transformers 5.23 (3 in earlier versions); a model masks it, so that all give the same.

    The defaults give the ids of current transformers (5.23). What was different in the original: see
    `AlbertTokenizer`.
    """

    special_tokens: ClassVar = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "sep_token": "<sep>",
        "pad_token": "<pad>",
        "cls_token": "<cls>",
        "mask_token": "<mask>",
    }
    added = (
        *map(AddedToken, ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>")),
        AddedToken("<mask>", strips_left=True),
        *map(AddedToken, ("<eod>", "<eop>")),
    )
    config_keys: ClassVar = {"lowercase": "do_lower_case"}
    padding_side = "left"

    def __init__(
        self,
        pieces: Sequence[tuple[str, float]],
        *,
        lowercase: bool = False,
        charsmap: bytes | None = None,
        added_tokens: Sequence[AddedToken] | None = None,
        model_max_length: int | None = None,
    ) -> None:
        super().__init__(
            pieces,
            lowercase=lowercase,
            keep_accents=False,
            charsmap=charsmap,
            added_tokens=added_tokens,
            model_max_length=model_max_length,
        )

    def with_special_tokens(
        self, first: list[int], second: list[int] | None = None
    ) -> tuple[list[int], list[int]]:
        """The ids of one or two texts → input_ids and token_type_ids of first <sep> (second <sep>) <cls>."""
        ids = [*first, self.sep_id]
        kinds = [0] * len(ids)
        if second is not None:
            ids += [*second, self.sep_id]
            kinds += [1] * (len(second) + 1)
        return [*ids, self.cls_id], [*kinds, 2]
