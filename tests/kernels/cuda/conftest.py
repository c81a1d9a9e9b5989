"""Where the kernels run: on a GPU if there is one, and on the CPU by way of the emulator."""

import numpy as np
import pytest
from kernels.cuda.emulator import Emulator, HostBlas

from minibert.devices import resolve_device
from minibert.errors import UserError
from minibert.kernels.cuda import launch, products


@pytest.fixture(scope="session")
def emulator(tmp_path_factory):
    if Emulator.missing():
        pytest.skip(Emulator.missing())
    return Emulator(tmp_path_factory.mktemp("emulator"))


@pytest.fixture
def on_host(emulator, monkeypatch):
    """NumPy, with the kernels emulated."""
    monkeypatch.setattr(launch, "launcher", emulator)
    monkeypatch.setattr(products, "find_cublas", HostBlas)
    return np


@pytest.fixture(params=["emulated", "gpu"])
def xp(request):
    """The array library that the kernels are called with: NumPy, emulated, and CuPy."""
    if request.param == "emulated":
        return request.getfixturevalue("on_host")
    try:
        return resolve_device("cuda").xp
    except UserError as error:
        pytest.skip(str(error))
