"""The engines that compute for real, made from the run manifest; torch is imported when one is."""

from pathlib import Path

from typing_extensions import override

from protocol.manifest import RunManifest
from roles.environments.base import environment
from roles.environments.blocking import InBackground
from roles.ports.background import Background
from roles.ports.engines import (
    Engines,
    Environment,
    GenerationEngine,
    TrainingEngine,
    VerificationEngine,
)


class TransformersEngines(Engines):
    """Makes engines on torch and transformers; ``device`` is torch's name of one, or ``auto``."""

    def __init__(self, device: str, background: Background, task_data: Path) -> None:
        """Take ``task_data``, the directory of the run's ``tokenizer`` and data sets."""
        self._requested_device = device
        self._background = background
        self._task_data = task_data

    @override
    def environment(self, manifest: RunManifest) -> Environment:
        name = manifest.environment.name
        if "/" not in name:
            return InBackground(environment(name), self._background)
        from roles.engines.tokenizer import HuggingFaceTokenizer  # noqa: PLC0415 - takes seconds
        from roles.environments.families import text_task  # noqa: PLC0415 - where a run has one

        tokenizer = HuggingFaceTokenizer(self._task_data / "tokenizer")
        return text_task(name, self._task_data, tokenizer, self._background)

    @override
    def generation(self, manifest: RunManifest) -> GenerationEngine:
        from roles.engines.qwen2.generation import (  # noqa: PLC0415 - torch takes seconds
            TransformersGenerationEngine,
        )

        return TransformersGenerationEngine(manifest.model, manifest.toploc, device=self._device())

    @override
    def verification(self, manifest: RunManifest) -> VerificationEngine:
        from roles.engines.qwen2.verification import (  # noqa: PLC0415 - torch takes seconds
            TransformersVerificationEngine,
        )

        return TransformersVerificationEngine(
            manifest.model,
            manifest.toploc,
            device=self._device(),
            policies_kept=manifest.grpo.async_level + 2,
        )

    @override
    def training(self, manifest: RunManifest) -> TrainingEngine:
        from roles.engines.training.engine import TorchTrainingEngine  # noqa: PLC0415 - torch takes seconds

        return TorchTrainingEngine(
            manifest.model, manifest.sampling, manifest.grpo, device=self._device()
        )

    def _device(self) -> str:
        if self._requested_device != "auto":
            return self._requested_device
        import torch  # noqa: PLC0415 - takes seconds

        return "cuda" if torch.cuda.is_available() else "cpu"
