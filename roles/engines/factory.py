"""The engines that compute for real, made from the run manifest; torch is imported when one is.

They compute in the process that makes them: an engine process, a benchmark or a test. A live daemon
has ``roles.engines.subprocess.client``, which talk to such processes.
"""

from typing import Literal

from typing_extensions import override

from protocol.run.manifest import RunManifest
from roles.ports.engines import (
    GenerationEngine,
    TrainingEngine,
    VerificationEngine,
)

EngineName = Literal["builtin", "vllm"]
"""What generates; what verifies and learns is built in."""


def modules_of(engine: EngineName) -> tuple[str, ...]:
    """Return what engines are made of, for who imports it before it is needed."""
    builtin = (
        "roles.engines.builtin.generation",
        "roles.engines.builtin.verification",
        "roles.engines.training.engine",
    )
    return (*builtin, "roles.engines.vllm.engine") if engine == "vllm" else builtin


def policies_kept(manifest: RunManifest) -> int:
    """Return how many policies a verification engine keeps."""
    return manifest.grpo.async_level + 2


class TransformersEngines:
    """Makes engines on torch and transformers; ``device`` is torch's name of one, or ``auto``."""

    def __init__(self, device: str) -> None:
        self._requested_device = device

    def generation(self, manifest: RunManifest) -> GenerationEngine:
        """Return an engine for an inference node."""
        from roles.engines.builtin.generation import (  # noqa: PLC0415 - torch takes seconds
            TransformersGenerationEngine,
        )

        return TransformersGenerationEngine(manifest.model, manifest.toploc, device=self._device())

    def verification(self, manifest: RunManifest) -> VerificationEngine:
        """Return an engine for a validator."""
        from roles.engines.builtin.verification import (  # noqa: PLC0415 - torch takes seconds
            TransformersVerificationEngine,
        )

        return TransformersVerificationEngine(
            manifest.model,
            manifest.toploc,
            device=self._device(),
            policies_kept=policies_kept(manifest),
        )

    def training(self, manifest: RunManifest) -> TrainingEngine:
        """Return an engine for a trainer."""
        from roles.engines.training.engine import TorchTrainingEngine  # noqa: PLC0415 - torch takes seconds

        return TorchTrainingEngine(
            manifest.model,
            manifest.sampling,
            manifest.grpo,
            run=manifest.run_id,
            device=self._device(),
        )

    def _device(self) -> str:
        return device_of(self._requested_device)


class VllmEngines(TransformersEngines):
    """Makes engines of which the generating one is vLLM, on ``gpus`` GPUs from ``device`` on."""

    def __init__(self, device: str, gpus: int = 1) -> None:
        super().__init__(device)
        self._gpus = gpus

    @override
    def generation(self, manifest: RunManifest) -> GenerationEngine:
        from roles.engines.vllm.engine import VllmGenerationEngine  # noqa: PLC0415 - 12 seconds

        return VllmGenerationEngine(
            manifest.model, manifest.toploc, device=self._requested_device, gpus=self._gpus
        )


def engines_of(engine: EngineName, device: str, gpus: int = 1) -> TransformersEngines:
    """Return what makes engines that generate with ``engine``."""
    return VllmEngines(device, gpus) if engine == "vllm" else TransformersEngines(device)


def device_of(requested: str) -> str:
    """Return torch's name of a device; ``auto`` is the first GPU if there is one."""
    if requested != "auto":
        return requested
    import torch  # noqa: PLC0415 - takes seconds

    return "cuda" if torch.cuda.is_available() else "cpu"
