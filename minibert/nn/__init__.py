"""Parameters, modules and layers: operations with something to learn."""

from minibert.nn.context import Context, Observer, Recorder
from minibert.nn.layers import Dropout, Embedding, LayerNorm, Linear, LinearActivation
from minibert.nn.module import Module
from minibert.nn.padding import padding_to_leave_out
from minibert.nn.parameter import Packed, Parameter, ParameterBuffers, Segment
from minibert.ops.observed import observed_backward

__all__ = [
    "Context",
    "Dropout",
    "Embedding",
    "LayerNorm",
    "Linear",
    "LinearActivation",
    "Module",
    "Observer",
    "Packed",
    "Parameter",
    "ParameterBuffers",
    "Recorder",
    "Segment",
    "observed_backward",
    "padding_to_leave_out",
]
