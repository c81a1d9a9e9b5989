"""SentencePiece's compiled rules of normalisation, made by hand: the inverse of what `CharacterMap` reads."""

import struct
from collections.abc import Mapping

LEAF, HAS_LEAF = 1 << 31, 1 << 8


def compiled(rules: Mapping[str, str]) -> bytes:
    """A ``precompiled_charsmap`` that replaces each key by its value.

    A double array of the roomiest kind: each node of the trie has 256 units of its own, one for each byte
    that may follow; its first unit holds its value. So a child of node k by the byte b is the unit 256 k + b.
    """
    replacements, offsets = b"", {}
    for text in rules.values():
        offsets[text] = len(replacements)
        replacements += text.encode() + b"\0"
    nodes = {key.encode()[:length] for key in rules for length in range(1, len(key.encode()) + 1)}
    number = {b"": 1} | {node: i for i, node in enumerate(sorted(nodes), start=2)}
    ends = {key.encode(): offsets[text] for key, text in rules.items()}
    units = [0] * (256 * (len(number) + 1))
    units[0] = 256 << 10
    for node, k in number.items():
        if node:
            here = 256 * number[node[:-1]] + node[-1]
            units[here] = ((here ^ 256 * k) << 10) | (HAS_LEAF if node in ends else 0) | node[-1]
        if node in ends:
            units[256 * k] = LEAF | ends[node]
    return struct.pack(f"<{len(units) + 1}I", 4 * len(units), *units) + replacements
