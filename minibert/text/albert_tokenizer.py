"""AlbertTokenizer: text to the pieces of ALBERT's vocabulary, with the behaviour of Hugging Face's."""

from collections.abc import Sequence
from typing import ClassVar

from minibert.errors import UserError
from minibert.text.unigram_files import AddedToken
from minibert.text.unigram_tokenizer import UnigramTokenizer


class AlbertTokenizer(UnigramTokenizer):
    """Unigram tokenizer of ALBERT: [CLS] A [SEP], or [CLS] A [SEP] B [SEP].

    Args:
        pieces: (token, log probability); a token's id is its index. <unk> must be token 1, and <pad>, [CLS],
            [SEP] and [MASK] must be among them.
        lowercase, keep_accents: see `MetaspaceNormaliser`.
        charsmap: the compiled rules of normalisation that SentencePiece's models bring, see `CharacterMap`.
        added_tokens: tokens that are found in a text before anything else, besides the special ones.
        model_max_length: the max_length of ``truncation=True`` and ``padding="max_length"`` if none is given.

    The defaults give the ids of current transformers (5.23). The original, SentencePiece with a few lines of
    Python around it, was different in three places:

    - A piece that ends in a digit and a comma ("▁2,") was split once more, so that the comma became a token
      of its own. Transformers 5 does not do this. Tokenizer files written by earlier versions have 100 taken
      off the scores of such pieces, to nearly the same effect; scores are used as they are in the file.
    - The rules of normalisation were applied differently; see `CharacterMap`.
    - ALBERT's ``spiece.model`` declares eight pieces as the user's own: ( ) " - . – £ €. They were pieces
      among others. Now, if the tokenizer is read from that file, they are added tokens: they are found in the
      text first, and a new word begins after each. So "f(x)" was ▁f ( x ) and is ▁f ( ▁x ).
    """

    special_tokens: ClassVar = {
        "bos_token": "[CLS]",
        "eos_token": "[SEP]",
        "unk_token": "<unk>",
        "sep_token": "[SEP]",
        "pad_token": "<pad>",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    }
    added = tuple(map(AddedToken, ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")))
    lowercase = True
    config_keys: ClassVar = {"lowercase": "do_lower_case", "keep_accents": "keep_accents"}

    def __init__(
        self,
        pieces: Sequence[tuple[str, float]],
        *,
        lowercase: bool = True,
        keep_accents: bool = False,
        charsmap: bytes | None = None,
        added_tokens: Sequence[AddedToken] | None = None,
        model_max_length: int | None = None,
    ) -> None:
        super().__init__(
            pieces,
            lowercase=lowercase,
            keep_accents=keep_accents,
            charsmap=charsmap,
            added_tokens=added_tokens,
            model_max_length=model_max_length,
        )
        if self.unk_id != 1:
            raise UserError(f"<unk> is token {self.unk_id}, but ALBERT's is token 1; use ALBERT's vocabulary")
