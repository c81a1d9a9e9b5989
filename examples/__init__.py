"""Whole programs in one file each: BERT, and the word vectors that came before it."""
