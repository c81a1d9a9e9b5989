"""The input of BERT: what each token is, where it stands, and which of the two texts it belongs to."""

from minibert import ops
from minibert.arrays import Array
from minibert.bert.config import BertConfig
from minibert.nn import Dropout, Embedding, LayerNorm, Module


class BertEmbeddings(Module):
    """dropout(LayerNorm(word + position + token type)).

    Every row of the word table gets its gradient, that of [PAD] too, as in google-research/bert;
    Hugging Face drops what the look-up would add to row ``pad_token_id``.
    """

    is_block = True

    def __init__(self, config: BertConfig):
        super().__init__()
        self.word_embeddings = Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = Embedding(
            config.max_position_embeddings, config.hidden_size, config.position_initializer
        )
        self.token_type_embeddings = Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Array, token_type_ids: Array) -> tuple[Array, tuple]:
        """input_ids, token_type_ids (B, S) → hidden (B, S, H)."""
        return ops.embed(
            self.word_embeddings.weight.operand,
            self.position_embeddings.weight.operand,
            self.token_type_embeddings.weight.operand,
            self.LayerNorm.weight.value,
            self.LayerNorm.bias.value,
            input_ids,
            token_type_ids,
            self.LayerNorm.eps,
            self.dropout.probability,
            self.dropout.key(),
        )

    def backward(self, dout: Array, cache: tuple) -> None:
        """dout (B, S, H); adds to the gradients of the three tables and of LayerNorm."""
        dword, dposition, dtoken_type, dweight, dbias = ops.embed_backward(dout, cache)
        self.word_embeddings.weight.add_grad(dword)
        self.position_embeddings.weight.add_grad(dposition)
        self.token_type_embeddings.weight.add_grad(dtoken_type)
        self.LayerNorm.weight.add_grad(dweight)
        self.LayerNorm.bias.add_grad(dbias)
