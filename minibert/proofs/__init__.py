"""Every hand-written derivative of the package, ready to be checked by ``minibert.gradcheck``.

The cases of ``operations``, ``layers``, ``models``, ``variants`` and ``xlnet`` are so small that every single
number can be moved. ``presets`` moves the parameters of BERTs of real sizes along random directions.
"""

from minibert.devices import Device
from minibert.gradcheck import Case
from minibert.proofs.layers import layer_cases, module_cases
from minibert.proofs.models import model_cases, output_cases, task_cases
from minibert.proofs.operations import operation_cases
from minibert.proofs.variants import variant_cases
from minibert.proofs.xlnet import xlnet_cases


def all_cases(device: Device) -> list[Case]:
    """Every gradient check of the package: operations, layers, modules, models."""
    return [
        *operation_cases(device),
        *layer_cases(device),
        *module_cases(device),
        *model_cases(device),
        *task_cases(device),
        *output_cases(device),
        *variant_cases(device),
        *xlnet_cases(device),
    ]
