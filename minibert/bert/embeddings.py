"""The input of BERT: what each token is, where it stands, and which of the two texts it belongs to."""

from minibert import ops
from minibert.arrays import Array, get_array_module
from minibert.bert.config import BertConfig
from minibert.nn import Context, Dropout, Embedding, LayerNorm, Module
from minibert.ops import Cache


class BertEmbeddings(Module):
    """dropout(LayerNorm(word + position + token type)).

    Every row of the word table gets its gradient, even that of [PAD], as in google-research/bert. Hugging
    Face drops the gradient that the look-up would add to row ``pad_token_id``.
    """

    is_block = True

    def __init__(self, config: BertConfig):
        super().__init__()
        size = config.embedding_size
        self.word_embeddings = Embedding(config.vocab_size, size)
        self.position_embeddings = Embedding(
            config.max_position_embeddings, size, config.position_initializer
        )
        self.token_type_embeddings = Embedding(config.type_vocab_size, size)
        self.LayerNorm = LayerNorm(size, config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        input_ids: Array,
        token_type_ids: Array,
        context: Context | None = None,
        inputs_embeds: Array | None = None,
    ) -> tuple[Array, Cache]:
        """input_ids, token_type_ids (B, S) → hidden (B, S, H).

        ``inputs_embeds`` (B, S, H) replaces the word embeddings; ``input_ids`` is then not read.
        """
        context = context or self.new_context()
        words = self.word_embeddings.weight.operand
        if inputs_embeds is not None:
            # The vectors become a table of their own, in which every token looks up its own row.
            words = inputs_embeds.reshape(-1, inputs_embeds.shape[-1]).astype(words.dtype, copy=False)
            input_ids = get_array_module(words).arange(len(words)).reshape(token_type_ids.shape)
        hidden, cache = ops.embed(
            words,
            self.position_embeddings.weight.operand,
            self.token_type_embeddings.weight.operand,
            self.LayerNorm.weight.value,
            self.LayerNorm.bias.value,
            input_ids,
            token_type_ids,
            self.LayerNorm.eps,
            self.dropout.probability,
            context.dropout_key(self.dropout.probability),
        )
        return hidden, Cache(self, inputs_embeds is not None, cache)

    def backward(self, dout: Array, cache: Cache) -> Array | None:
        """dout (B, S, H); adds to the gradients of the three tables and of LayerNorm.

        Returns dinputs_embeds (B, S, H) if there were ``inputs_embeds``, else None: ids have no derivative.
        """
        dword, dposition, dtoken_type, dweight, dbias = ops.embed_backward(dout, cache.pop(self))
        self.position_embeddings.weight.add_grad(dposition)
        self.token_type_embeddings.weight.add_grad(dtoken_type)
        self.LayerNorm.weight.add_grad(dweight)
        self.LayerNorm.bias.add_grad(dbias)
        if cache.pop(self):
            return dword.reshape(dout.shape)
        self.word_embeddings.weight.add_grad(dword)
        return None
