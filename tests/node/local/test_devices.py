import pytest

from node.local import devices
from node.local.devices import why_no_device
from node.local.hardware import Gpu

CARD = Gpu("one", 8, 8, "1")


@pytest.fixture
def machine(monkeypatch):
    """Return a function that sets GPUs, the build of torch, and the GPUs visible to CUDA."""

    def made(cards=0, build="cu128", visible=None):
        monkeypatch.setattr(devices, "gpus", lambda: iter([CARD] * cards))
        monkeypatch.setattr(devices, "version", lambda _: f"2.13.0+{build}".rstrip("+"))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return made


def told(device, *, own_torch=True):
    return why_no_device(device, own_torch=own_torch)


def test_a_machine_without_a_gpu_is_told_at_once(machine):
    machine()
    assert told("cuda") == (
        "--device cuda: no NVIDIA driver shows a GPU here; use --device cpu, or auto"
    )
    assert told("cpu") == told("auto") == ""


def test_a_torch_for_cpus_is_no_use(machine):
    machine(cards=2, build="cpu")
    assert "the torch that is installed here is built for CPUs" in told("cuda:1")
    assert told("cuda:1", own_torch=False) == "", "another interpreter's is not known"


@pytest.mark.parametrize(
    ("cards", "visible", "device", "right"),
    [
        (2, None, "cuda", True),
        (2, None, "cuda:1", True),
        (2, None, "cuda:2", False),
        (4, "2,3", "cuda:1", True),
        (4, "2,3", "cuda:2", False),
        (4, "", "cuda", False),
        (4, "-1", "cuda", False),
    ],
)
def test_a_card_that_is_not_there_is_named(machine, cards, visible, device, right):
    machine(cards, visible=visible)
    assert (told(device) == "") == right


def test_a_device_of_the_trainer_is_named_by_its_option(machine):
    machine(cards=2)
    reason = why_no_device("cuda:2", own_torch=True, option="--trainer-devices")
    assert reason.startswith("--trainer-devices cuda:2: the last GPU here is cuda:1; use that, or")
    assert "--device" not in reason


def test_the_cards_of_rocm_are_not_asked_of_nvidia(machine):
    machine(build="rocm6.4")
    assert told("cuda") == ""
