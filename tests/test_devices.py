"""Devices by name, and what is said where there is none."""

import re
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from minibert import devices
from minibert.devices import Device, describe_processor, resolve_device
from minibert.errors import UserError


class CudaError(Exception):
    """Stands for cupy.cuda.runtime.CUDARuntimeError."""

    def __init__(self, message, status=100):
        super().__init__(message)
        self.status = status


@pytest.fixture
def pretend(monkeypatch):
    """Pretend that CuPy is installed and finds so many GPUs, or raises an error; None: not installed.

    ``broken`` is the error that computing then ends in.
    """

    def install(gpus, broken=None):
        if gpus is None:
            monkeypatch.setitem(sys.modules, "cupy", None)  # makes "import cupy" an ImportError
            return []
        used = []

        def count():
            if isinstance(gpus, Exception):
                raise gpus
            return gpus

        def arange(stop):
            if broken:
                raise broken
            return np.arange(stop)

        cupy = ModuleType("cupy")
        cupy.arange = arange
        cupy.cuda = SimpleNamespace(
            runtime=SimpleNamespace(
                getDeviceCount=count,
                CUDARuntimeError=CudaError,
                runtimeGetVersion=lambda: 12090,
            ),
            Device=lambda index: SimpleNamespace(use=lambda: used.append(index)),
        )
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        return used

    return install


def refusal(name="cuda"):
    """The one line that says why there is no such device."""
    with pytest.raises(UserError, match=f"device '{name}'") as caught:
        resolve_device(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_cpu_is_always_there():
    assert resolve_device("cpu") == Device("cpu", np)
    assert resolve_device(Device("cpu", np)) == Device("cpu", np)


def test_auto_without_a_gpu_is_the_cpu(pretend):
    for gpus in (None, 0, CudaError("no driver")):
        pretend(gpus)
        assert resolve_device("auto").name == "cpu"


def test_gpus_by_number(pretend):
    used = pretend(2)
    assert [resolve_device(name).name for name in ("auto", "cuda", "cuda:1")] == [
        "cuda:0",
        "cuda:0",
        "cuda:1",
    ]
    assert used == [0, 0, 1], "CuPy is told as well"
    assert resolve_device("cuda").xp is sys.modules["cupy"]


def test_each_process_of_a_machine_gets_a_gpu_of_its_own(pretend):
    used = pretend(2)
    assert [resolve_device("cuda", rank).name for rank in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert resolve_device("auto", 1).name == resolve_device("cuda:1", 0).name == "cuda:1"
    assert used == [0, 1, 0, 1, 1]
    pretend(1)  # some launchers show each process only the GPU that it is to use
    assert resolve_device("cuda", 3).name == "cuda:0"


@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_cuda_without_cupy_says_what_to_install(pretend, name):
    pretend(None)
    with pytest.raises(UserError, match=name) as caught:
        resolve_device(name)
    assert "pip install -e '.[cuda12]'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_cuda_without_a_usable_gpu(pretend):
    pretend(CudaError("out of order"))
    assert re.search(r"no usable GPU \(out of order\).*--device cpu", refusal())
    pretend(0)
    assert re.search(r"no NVIDIA GPU.*--device cpu", refusal())


def test_no_driver_or_one_that_is_too_old_for_this_wheel(pretend):
    pretend(CudaError("driver version is insufficient", status=35))
    assert re.search(r"no NVIDIA driver, or it is too old for CUDA 12\.9.*or the CuPy for that", refusal())


def test_a_cupy_that_does_not_load(pretend, monkeypatch, tmp_path):
    """CuPy's own message has a frame and many lines; what counts is the last."""
    framed = r"{0}\nFailed to import CuPy.\n{0}\nlibcudart.so.12: no such file\n{0}".format("=" * 60)
    for source, told in (
        (f'raise ImportError("{framed}")', r"not load \(libcudart.so.12: no such file\); .*pip install"),
        ("import a_module_that_is_not_there", r"a package that it needs is not .*a_module_that_is_not_there"),
    ):
        (tmp_path / "cupy.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "cupy", raising=False)
        assert re.search(told, refusal())


def test_several_cupy_wheels(pretend, monkeypatch):
    pretend(1)
    names = ["numpy", "cupy-cuda12x", "cupy-xarray", "cupy-cuda13x"]
    monkeypatch.setattr(
        "minibert.devices.metadata.distributions", lambda: [SimpleNamespace(name=name) for name in names]
    )
    assert re.search(r"several CuPy .* pip uninstall cupy-cuda12x cupy-cuda13x ", refusal())
    assert resolve_device("auto").name == "cpu"
    names.remove("cupy-cuda13x")
    assert resolve_device("cuda").name == "cuda:0"


def test_a_gpu_on_which_cupy_cannot_compute(pretend):
    pretend(1, broken=RuntimeError("CuPy failed to load libnvrtc.so.12"))
    assert re.search(r"cannot compute on it \(CuPy failed to load libnvrtc.so.12\); .*pip install", refusal())


def test_a_gpu_that_is_not_there(pretend):
    pretend(2)
    for name in ("cuda:2", "cuda:9"):
        with pytest.raises(UserError, match=rf"'{name}' does not exist: this machine has 2 GPU"):
            resolve_device(name)


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cuda1", "CPU", "", "mps", "cpu:0"])
def test_a_device_that_does_not_exist(pretend, name):
    pretend(2)
    with pytest.raises(UserError, match="expected auto, cpu, cuda or cuda:N") as caught:
        resolve_device(name)
    assert repr(name) in str(caught.value)


XEON = "Intel(R) Xeon(R) Processor"


@pytest.mark.parametrize(
    ("name", "family", "flags", "described"),
    [
        ("AMD EPYC", 25, "fma avx avx2", "AMD EPYC (family 25, AVX2)"),  # Zen 3
        ("AMD EPYC", 25, "fma avx avx2 avx512f avx512_bf16", "AMD EPYC (family 25, AVX-512)"),  # Zen 4
        (XEON, 6, "avx2 avx512f", f"{XEON} (family 6, AVX-512)"),  # Ice Lake
        (XEON, 6, "avx2 avx512f amx_bf16 amx_tile", f"{XEON} (family 6, AVX-512, AMX)"),  # Sapphire Rapids
    ],
)
def test_processors_of_one_family_are_told_apart_by_what_they_can_do(
    monkeypatch, name, family, flags, described
):
    """As virtual machines describe them."""
    facts = {"model name": name, "cpu family": str(family), "flags": flags}
    monkeypatch.setattr(devices, "processor_facts", lambda: facts)
    assert describe_processor(resolve_device("cpu")) == described


def test_a_processor_without_avx_or_family_is_described_by_what_is_known(monkeypatch):
    facts = {"model name": "Some CPU", "cpu family": "6", "flags": "sse2"}
    monkeypatch.setattr(devices, "processor_facts", lambda: facts)
    assert describe_processor(resolve_device("cpu")) == "Some CPU (family 6)"
    del facts["cpu family"]
    assert describe_processor(resolve_device("cpu")) == "Some CPU"
