"""Pretrained folders: reading and writing tensors, in one file or in shards, in 16, 32 or 64 bits."""
