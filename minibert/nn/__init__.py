"""Parameters, modules and layers: operations with something to learn."""

from minibert.nn.initialise import initialise
from minibert.nn.layers import Dropout, Embedding, LayerNorm, Linear
from minibert.nn.module import Module
from minibert.nn.parameter import Packed, Parameter, ParameterBuffers, Segment

__all__ = [
    "Dropout",
    "Embedding",
    "LayerNorm",
    "Linear",
    "Module",
    "Packed",
    "Parameter",
    "ParameterBuffers",
    "Segment",
    "initialise",
]
