"""The GPU made of paper: right numbers, the right notes, and refusals where CuPy refuses."""

import operator

import numpy as np
import pytest

from minibert import BertConfig, BertForPreTraining, ops
from minibert.course.paper_gpu import Launch, PaperGPU
from minibert.devices import Device
from minibert.kernels.cuda import launch, products
from minibert.kernels.cuda.on_paper import noted
from minibert.ops.layer_normalisation import layer_norm
from minibert.train import AdamW
from minibert.train.step import TrainingStep


@pytest.fixture
def gpu():
    return PaperGPU()


def test_an_operation_runs_on_it_and_gives_numpys_bits(gpu):
    x, weight, bias = np.random.default_rng(0).standard_normal((3, 4, 8)).astype(np.float32)
    y, _ = layer_norm(*map(gpu.asarray, (x, weight[0], bias[0])), 1e-12)
    assert np.array_equal(y.get(), layer_norm(x, weight[0], bias[0], 1e-12)[0])
    assert (gpu.uploads, gpu.waits) == (3, 1)


def test_what_is_noted_of_a_launch(gpu):
    a, b = gpu.zeros((6, 4), dtype="float32"), gpu.zeros((4, 5), dtype="float32")
    gpu.clear()
    a @ b
    a += 2.0
    b.sum(axis=1)
    a[:, 1] = a[:, 0]
    assert gpu.launches == [
        Launch("matmul", 96 + 80, 120, 2 * 6 * 5 * 4),
        Launch("add", 96, 96, 24),
        Launch("sum", 80, 16, 20),
        Launch("setitem", 24, 24, 6),
    ]


def test_views_and_allocations_are_no_launches(gpu):
    x = gpu.asarray(np.zeros((6, 4)))
    gpu.empty(3), gpu.empty_like(x), x.T, x[1], x[:, 1:3], x.reshape(-1), x.view("int64"), x.shape, len(x)
    assert gpu.launches == []
    x.T.reshape(-1)  # a copy
    assert len(gpu.launches) == 1


MIXTURES = {
    "an operator": lambda x: x + np.zeros(3),
    "an operator of NumPy's": lambda x: np.zeros(3) + x,
    "a function of NumPy's": lambda x: np.maximum(x, np.zeros(3)),
    "a result for NumPy's": lambda x: np.exp(x, out=np.zeros(3)),
    "a place of NumPy's": lambda x: operator.iadd(np.zeros(3), x),
    "a function": lambda x: x.gpu.maximum(x, np.zeros(3)),
    "a conversion": lambda x: np.asarray(x),
}


@pytest.mark.parametrize("kind", MIXTURES)
def test_arrays_of_the_host_are_refused(gpu, kind):
    with pytest.raises(TypeError):
        MIXTURES[kind](gpu.zeros(3))


def test_a_function_of_numpys_is_passed_on_to_the_library_of_the_array(gpu):
    y = np.exp(gpu.zeros(3))
    assert type(y) is gpu.ndarray
    assert gpu.launches[-1] == Launch("exp", 24, 24, 3)
    assert gpu.waits == 0


@pytest.mark.parametrize("read", [float, int, bool, lambda x: x.item(), lambda x: x.get()])
def test_reading_a_value_is_a_wait(gpu, read):
    assert read(gpu.ones(())) == 1
    assert gpu.waits == 1


def trained(device, steps=2):
    """A training step of a small model, and its parameters after two of them."""
    rng = np.random.default_rng(0)
    config = BertConfig(
        vocab_size=99, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24
    )
    model = BertForPreTraining(config, device=device, seed=1)
    step = TrainingStep(model, AdamW(model), predictions=12)
    for number in range(steps):
        ids = rng.integers(5, 99, (2, 12))
        labels = np.where(np.arange(12) < 4, ids, -100)
        if isinstance(device.xp, PaperGPU):
            device.xp.clear()
        step.take([dict(input_ids=ids, labels=labels, next_sentence_label=np.ones(2, int))], 1e-2, number)
    return model.buffers.value


def test_a_training_step_runs_on_it_with_one_upload_and_no_wait(gpu):
    with ops.reference_only():
        expected = trained(Device("cpu", np))
    got = trained(gpu.device)
    assert (gpu.uploads, gpu.waits) == (1, 0)
    assert np.allclose(got.get(), expected, rtol=0, atol=1e-6)


def test_with_kernels_there_are_fewer_launches_and_all_are_of_kernels_that_exist(gpu):
    trained(gpu.device)
    before, with_kernels = (launch.launcher, products.find_cublas), PaperGPU("cupy")
    kernels = []
    with noted(lambda name: kernels.append(name) or with_kernels.launches.append(Launch(name, 0, 0, 0))):
        trained(with_kernels.device)
    assert (launch.launcher, products.find_cublas) == before
    kernels = set(kernels) - {"cuBLAS"}
    sources = "".join(path.read_text(encoding="utf-8") for path in launch.FOLDER.glob("*.cu"))
    assert {"residual_norm", "attention_softmax", "adamw"} <= kernels
    assert all(f"void {name}(" in sources for name in kernels)
    assert len(with_kernels.launches) < len(gpu.launches) / 3
    assert (with_kernels.uploads, with_kernels.waits) == (1, 0)
