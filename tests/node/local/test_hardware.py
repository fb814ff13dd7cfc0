from types import SimpleNamespace

import psutil
import pynvml
import pytest

from node.local.hardware import probe_hardware


class Driver:
    """Fake NVIDIA driver: (name, memory) of each GPU, None for one that fails."""

    def __init__(self, monkeypatch, gpus):
        self.open = 0
        monkeypatch.setattr(pynvml, "nvmlInit", self.init)
        monkeypatch.setattr(pynvml, "nvmlShutdown", self.shutdown)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(gpus))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: gpus[index])
        monkeypatch.setattr(pynvml, "nvmlDeviceGetName", self.name)
        monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: b"580.1")
        monkeypatch.setattr(
            pynvml, "nvmlDeviceGetMemoryInfo", lambda gpu: SimpleNamespace(total=gpu[1], free=0)
        )

    def init(self):
        self.open += 1

    def shutdown(self):
        self.open -= 1

    def name(self, gpu):
        if gpu is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return gpu[0]


def test_a_machine_without_a_driver(monkeypatch):
    def missing():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    hardware = probe_hardware()
    assert (hardware.gpu, hardware.gpus, hardware.gpu_memory_bytes) == ("", 0, 0)
    assert hardware.memory_bytes == psutil.virtual_memory().total
    assert 1 <= hardware.cores <= psutil.cpu_count()


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ([("NVIDIA H200", 140), ("NVIDIA H200", 140)], ("NVIDIA H200", 2, 280)),
        ([(b"NVIDIA A100", 80), ("NVIDIA L4", 24)], ("NVIDIA A100 + NVIDIA L4", 2, 104)),
        ([("NVIDIA H200", 140), None, ("NVIDIA H200", 140)], ("NVIDIA H200", 1, 140)),
        ([("x" * 500, 1)], ("x" * 200, 1, 1)),
        ([], ("", 0, 0)),
    ],
)
def test_gpus(monkeypatch, gpus, expected):
    driver = Driver(monkeypatch, gpus)
    hardware = probe_hardware()
    assert (hardware.gpu, hardware.gpus, hardware.gpu_memory_bytes) == expected
    assert driver.open == 0


def test_a_system_that_does_not_tell_which_cores(monkeypatch):
    monkeypatch.delattr(psutil.Process, "cpu_affinity")
    assert probe_hardware().cores == psutil.cpu_count()
