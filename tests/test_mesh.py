"""Devices in a mesh, by config and by flag; what each process reads; what must divide."""

import dataclasses

import numpy as np
import pytest

from jaxformer import mesh
from jaxformer.config import MeshConfig, check_spread, parse_mesh
from jaxformer.errors import UserError
from tests.training import tiny


@dataclasses.dataclass(frozen=True)
class Fake:
    """A device of a machine that is not here."""

    id: int
    process_index: int
    slice_index: int = 0
    platform: str = "gpu"
    device_kind: str = "fake"


def fakes(count, slices=1, processes=1):
    """In the order that JAX has them."""
    return [Fake(n, n * processes // count, n * slices // count) for n in range(count)]


def ids(devices):
    return np.vectorize(lambda device: device.id)(devices)


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ((-1, 1), (8, 1, 1, 1, 1)),
        ((2, 4), (2, 4, 1, 1, 1)),
        ((-1, 4), (2, 4, 1, 1, 1)),
        ((2, -1), (2, 4, 1, 1, 1)),
        ((2, 2, 2), (2, 2, 1, 1, 2)),
        ((1, 2, -1, 2), (1, 2, 1, 2, 2)),
        ((1, 1, 1, -1), (1, 1, 1, 8, 1)),
        ((1, 1), None),
    ],
)
def test_mesh_shapes(sizes, shape):
    found = mesh.make_mesh(MeshConfig(*sizes))
    assert (found and tuple(found.shape.values())) == shape
    assert found is None or tuple(found.axis_names) == mesh.AXES


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((3, -1), "mesh.data: 3 does not divide the 8 devices"),
        ((-1, 3, 2), "mesh: 6 does not divide the 8 devices"),
        ((2, 2), "data × fsdp = 2 × 2 but there are 8"),
        ((2, 2, 4), "data × fsdp × tensor = 2 × 2 × 4 but there are 8"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused_with_the_numbers(sizes, words):
    with pytest.raises(UserError, match=words):
        mesh.make_mesh(MeshConfig(*sizes))


def test_an_expert_axis_needs_experts_that_divide():
    with pytest.raises(UserError, match=r"mesh\.expert: is 2, no layer has experts"):
        tiny.config(mesh__expert=2)
    moe = {"model__moe__num_experts": 6}
    with pytest.raises(
        UserError, match=r"mesh\.expert: 4 does not divide model\.moe\.num_experts = 6"
    ):
        tiny.config(mesh__expert=4, **moe)
    with pytest.raises(UserError, match=r"mesh\.tensor: 2 does not divide model\.moe\.d_ff = 9"):
        tiny.config(mesh__tensor=2, model__moe__d_ff=9, **moe)
    cfg = tiny.config(mesh__data=2, mesh__expert=-1, **moe)
    with pytest.raises(UserError, match=r"mesh\.expert: 4 does not divide"):
        check_spread(cfg, cfg.mesh.filled(8))
    made = mesh.make_mesh(MeshConfig(1, 2, expert=4))
    assert made is not None
    assert tuple(made.shape.values()) == (1, 2, 4, 1, 1)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("", (1, 1)),
        ("run", (2, 4)),
        ("data:2,fsdp:2,tensor:2", (2, 2, 2)),
        ("tensor:4", (-1, 1, 4)),
        ("context:-1", (1, 1, 1, -1)),
        ("data:1,fsdp:8", (1, 8)),
    ],
)
def test_a_mesh_as_a_flag(text, sizes):
    assert parse_mesh(text, MeshConfig(2, 4)) == MeshConfig(*sizes)


@pytest.mark.parametrize("text", ["8", "tensor", "heads:2", "data:2,data:4", "fsdp:x", "data:2,"])
def test_what_is_no_mesh_is_refused(text):
    with pytest.raises(UserError, match=r"--mesh: has .* write AXIS:SIZE"):
        parse_mesh(text, MeshConfig(1, 1))
    with pytest.raises(UserError, match=r"mesh\.fsdp: is 0"):
        parse_mesh("fsdp:0", MeshConfig(1, 1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mesh__tensor": 4}, "mesh.tensor: 4 does not divide model.num_heads = 2"),
        ({"mesh__tensor": 2, "model__d_ff": 7}, "mesh.tensor: 2 does not divide model.d_ff = 7"),
        (
            {"mesh__tensor": 6, "model__num_heads": 12, "model__num_kv_heads": 4}
            | {"model__d_model": 24},
            "mesh.tensor: 6 and model.num_kv_heads = 4: neither divides the other",
        ),
        ({"mesh__fsdp": 3}, "mesh.fsdp: 3 does not divide model.d_model = 8"),
        ({"mesh__context": 3}, "mesh.context: 3 does not divide data.length = 8"),
        (
            tiny.SEQ2SEQ | {"mesh__context": 4, "data__target_length": 6},
            "mesh.context: 4 does not divide data.target_length = 6",
        ),
        (
            {"model__architecture": "lstm", "model__position__kind": "none", "mesh__context": 2}
            | {"model__num_heads": 4},
            "mesh.context: is 2 while model.architecture = lstm",
        ),
    ],
)
def test_uneven_sizes_are_refused_as_the_config_is_read(changes, words):
    with pytest.raises(UserError, match=words):
        tiny.config(**changes)


def test_the_rest_is_known_with_the_devices():
    cfg = tiny.config(mesh__data=1, mesh__tensor=-1)
    with pytest.raises(UserError, match=r"mesh\.tensor: 8 does not divide model\.num_heads = 2"):
        check_spread(cfg, cfg.mesh.filled(8))
    check_spread(cfg, cfg.mesh.filled(2))


@pytest.mark.parametrize(
    ("shape", "along"),
    [((2, 4, 1, 1, 1), "data"), ((4, 1, 1, 1, 2), "data"), ((1, 4, 1, 2, 1), "fsdp")],
)
def test_slices_lie_along_data_and_then_fsdp(shape, along):
    devices = mesh.arrange(shape, fakes(8, slices=2))
    assert devices.shape == shape
    axis = mesh.AXES.index(along)
    halves = np.split(devices, 2, axis=axis)
    for number, half in enumerate(halves):
        assert {device.slice_index for device in half.flat} == {number}
    assert sorted(ids(devices).flat) == list(range(8))


def test_slices_along_both():
    devices = mesh.arrange((2, 4, 1, 1, 2), fakes(16, slices=4))
    of = np.vectorize(lambda device: device.slice_index)(devices)[:, :, 0, 0, 0]
    assert of.tolist() == [[0, 0, 1, 1], [2, 2, 3, 3]]


def test_tensor_and_context_stay_within_a_slice():
    with pytest.raises(UserError, match=r"mesh\.fsdp: 1 × 1 cannot be shared by 2 slices"):
        mesh.arrange((1, 1, 1, 2, 4), fakes(8, slices=2))


@pytest.mark.parametrize(
    ("sizes", "processes", "parts"),
    [
        ((8, 1), 2, {0: (0, 2), 1: (1, 2)}),
        ((2, 2, 2), 2, {0: (0, 2), 1: (1, 2)}),
        ((2, 1, 4), 4, {0: (0, 2), 1: (0, 2), 2: (1, 2), 3: (1, 2)}),  # two processes share rows
        ((1, 1, 8), 2, {0: (0, 1), 1: (0, 1)}),
        ((1, 2, 2, 2), 4, {0: (0, 2), 1: (0, 2), 2: (1, 2), 3: (1, 2)}),
    ],
)
def test_each_process_reads_the_rows_of_its_devices(sizes, processes, parts, monkeypatch):
    devices = fakes(8, processes=processes)
    made = mesh.make_mesh(MeshConfig(*sizes), devices)
    assert made is not None
    for process, part in parts.items():
        monkeypatch.setattr(mesh.jax, "process_index", lambda process=process: process)
        assert mesh.place(made) == part
        rows = made.devices.reshape(np.prod(made.devices.shape[:3]), -1)
        mine = np.array_split(rows, part[1])[part[0]]
        of_process = [device for device in devices if device.process_index == process]
        assert all(any(device is other for other in mine.flat) for device in of_process)


def test_a_topology_that_mixes_processes_is_sorted(monkeypatch):
    """Wherever it would put its devices, each process has one slice of the batch."""
    mixed = np.array([Fake(n, n % 2) for n in range(8)])
    monkeypatch.setattr(mesh, "arrange", lambda shape, devices: mixed.reshape(shape))
    made = mesh.make_mesh(MeshConfig(4, 2), fakes(8, processes=2))
    assert made is not None
    assert ids(made.devices).ravel().tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


def test_rows_that_belong_to_parts_of_processes_are_refused():
    with pytest.raises(UserError, match="tensor = 3 × 1 × 2: 2 devices share rows"):
        mesh.make_mesh(MeshConfig(3, 1, 2), fakes(6, processes=2))


def test_no_mesh_reads_all():
    assert mesh.place(None) == (0, 1)
    with pytest.raises(UserError, match="1 × 1 but there are 2 devices"):
        mesh.make_mesh(MeshConfig(1, 1), fakes(2, processes=2))
