"""What the input of BERT's descendants does otherwise: positions looked up, token types left out, E < H."""

from minibert.arrays import Array, get_array_module
from minibert.bert.config import BertConfig
from minibert.bert.embeddings import BertEmbeddings
from minibert.nn import Context, Linear
from minibert.ops import Cache


class LookedUpEmbeddings(BertEmbeddings):
    """dropout(LayerNorm(word + position + token type)), the last two only where there are such tables.

    BertEmbeddings adds row s of the position table to token s. Here ``position_ids`` says which row.
    """

    positions = True
    token_types = True

    def position_ids(self, input_ids: Array | None, like: Array) -> Array:
        """The row of the position table for each token: (B, S). ``like`` is any array of this shape."""
        return get_array_module(like).zeros_like(like) + get_array_module(like).arange(like.shape[1])

    def forward(
        self,
        input_ids: Array,
        token_type_ids: Array,
        context: Context | None = None,
        inputs_embeds: Array | None = None,
    ) -> tuple[Array, Cache]:
        """input_ids, token_type_ids (B, S), or inputs_embeds (B, S, H) → hidden (B, S, H)."""
        context = context or self.new_context()
        word_cache = position_cache = type_cache = None
        words = self.word_embeddings.weight
        if inputs_embeds is None:
            total, word_cache = self.word_embeddings.forward(input_ids)
        else:
            total = inputs_embeds.astype(words.value.dtype, copy=False)
        if self.positions:
            rows = self.position_ids(input_ids, token_type_ids)
            positions, position_cache = self.position_embeddings.forward(rows)
            total = total + positions  # (B, S, H)
        if self.token_types:
            types, type_cache = self.token_type_embeddings.forward(token_type_ids)
            total = total + types
        normalised, norm_cache = self.LayerNorm.forward(total.astype(words.operand.dtype, copy=False))
        hidden, dropout_cache = self.dropout.forward(normalised, context)
        return hidden, Cache(self, word_cache, position_cache, type_cache, norm_cache, dropout_cache)

    def backward(self, dout: Array, cache: Cache) -> Array | None:
        """dout (B, S, H) → dinputs_embeds (B, S, H), or None if there were none.

        forward: rows of the tables were added, so each table gets the same derivative, at its own rows.
        """
        dnormalised = self.dropout.backward(dout, cache.pop(self))
        dtotal = self.LayerNorm.backward(dnormalised, cache.pop(self))  # (B, S, H)
        type_cache, position_cache, word_cache = (cache.pop(self) for _ in range(3))
        if self.token_types:
            self.token_type_embeddings.backward(dtotal, type_cache)
        if self.positions:
            self.position_embeddings.backward(dtotal, position_cache)
        if word_cache is None:
            return dtotal
        self.word_embeddings.backward(dtotal, word_cache)
        return None


class ProjectedEmbeddings(BertEmbeddings):
    """BERT's embeddings in the size E, and a linear map to the hidden size H of the layers.

    What a word is by itself (its row) needs fewer numbers than what it is in its context, so E < H saves most
    of the V · H numbers of a table (Lan et al., 2020, section 3.1). ELECTRA leaves the map out where E = H.
    """

    def __init__(self, config: BertConfig, always: bool):
        super().__init__(config)
        mapped = always or config.embedding_size != config.hidden_size
        self.project = Linear(config.embedding_size, config.hidden_size) if mapped else None

    def forward(
        self,
        input_ids: Array,
        token_type_ids: Array,
        context: Context | None = None,
        inputs_embeds: Array | None = None,
    ) -> tuple[Array, Cache]:
        """input_ids, token_type_ids (B, S), or inputs_embeds (B, S, E) → hidden (B, S, H)."""
        context = context or self.new_context()
        hidden, cache = super().forward(input_ids, token_type_ids, context, inputs_embeds)  # (B, S, E)
        project_cache = None
        if self.project:
            hidden, project_cache = self.project.forward(hidden)  # (B, S, H)
        return hidden, Cache(self, cache, project_cache)

    def backward(self, dout: Array, cache: Cache) -> Array | None:
        """dout (B, S, H) → dinputs_embeds (B, S, E), or None if there were none."""
        project_cache = cache.pop(self)
        if self.project:
            dout = self.project.backward(dout, project_cache)
        return super().backward(dout, cache.pop(self))
