"""Make engines from the run manifest; torch is imported with the first one.

They compute in the calling process: an engine process, a benchmark or a test. A live daemon uses
``roles.engines.subprocess.client``, which calls such processes.
"""

from typing import Literal

from typing_extensions import override

from protocol.run.manifest import RunManifest
from roles.ports.engines import (
    GenerationEngine,
    RankPlace,
    TrainingEngine,
    VerificationEngine,
)

EngineName = Literal["builtin", "vllm"]
"""The generation engine; verification and training are always built in."""


def modules_of(engine: EngineName) -> tuple[str, ...]:
    """Return the modules to import before the engines are needed."""
    builtin = (
        "roles.engines.builtin.generation",
        "roles.engines.builtin.verification",
        "roles.engines.training.engine",
    )
    return (*builtin, "roles.engines.vllm.engine") if engine == "vllm" else builtin


def policies_kept(manifest: RunManifest) -> int:
    """Return the number of policies that a verification engine keeps."""
    return manifest.grpo.async_level + 2


class TransformersEngines:
    """Make engines on torch and transformers; ``device`` is a torch device name or ``auto``.

    ``place`` is this process's place among the ranks of a training engine.
    """

    def __init__(self, device: str, place: RankPlace | None = None) -> None:
        self._requested_device = device
        self._place = place or RankPlace()

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
        """Return an engine for a trainer; of several ranks, it waits until all have joined."""
        from roles.engines.training.engine import TorchTrainingEngine  # noqa: PLC0415 - torch takes seconds
        from roles.engines.training.ranks import join  # noqa: PLC0415 - the same

        device, place = self._device(), self._place
        return TorchTrainingEngine(
            manifest.model,
            manifest.sampling,
            manifest.grpo,
            run=manifest.run_id,
            device=device,
            ranks=join(place.rank, place.ranks, place.rendezvous, device),
        )

    def _device(self) -> str:
        return device_of(self._requested_device)


class VllmEngines(TransformersEngines):
    """Make vLLM generation engines, on ``gpus`` GPUs starting at ``device``."""

    def __init__(self, device: str, gpus: int = 1, place: RankPlace | None = None) -> None:
        super().__init__(device, place)
        self._gpus = gpus

    @override
    def generation(self, manifest: RunManifest) -> GenerationEngine:
        from roles.engines.vllm.engine import VllmGenerationEngine  # noqa: PLC0415 - 12 seconds

        return VllmGenerationEngine(
            manifest.model, manifest.toploc, device=self._requested_device, gpus=self._gpus
        )


def engines_of(
    engine: EngineName, device: str, gpus: int = 1, place: RankPlace | None = None
) -> TransformersEngines:
    """Return a factory of engines that generate with ``engine``."""
    if engine == "vllm":
        return VllmEngines(device, gpus, place)
    return TransformersEngines(device, place)


def device_of(requested: str) -> str:
    """Return a torch device name; ``auto`` is the first GPU if there is one."""
    if requested != "auto":
        return requested
    import torch  # noqa: PLC0415 - takes seconds

    return "cuda" if torch.cuda.is_available() else "cpu"
