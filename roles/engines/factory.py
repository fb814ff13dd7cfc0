"""The engines that compute for real, made from the run manifest; torch is imported when one is."""

from protocol.manifest import RunManifest
from roles.environments.base import environment
from roles.ports.engines import Environment, GenerationEngine, TrainingEngine, VerificationEngine


class TransformersEngines:
    """Implements ``node.daemon.Engines`` on torch and transformers."""

    def __init__(self, device: str) -> None:
        self._requested_device = device

    def environment(self, manifest: RunManifest) -> Environment:
        """Return the run's task; raises ``ValueError`` when this software does not have it."""
        return environment(manifest.environment.name)

    def generation(self, manifest: RunManifest) -> GenerationEngine:
        """Return an engine with its own decode loop."""
        from roles.engines.qwen2.generation import (  # noqa: PLC0415 - torch takes seconds
            TransformersGenerationEngine,
        )

        return TransformersGenerationEngine(
            model_config=manifest.model.config,
            precision=manifest.toploc.precision,
            top_k=manifest.toploc.top_k,
            chunk_tokens=manifest.toploc.chunk_tokens,
            device=self._device(),
        )

    def verification(self, manifest: RunManifest) -> VerificationEngine:
        """Return an engine that checks by prefill."""
        from roles.engines.qwen2.verification import (  # noqa: PLC0415 - torch takes seconds
            TransformersVerificationEngine,
        )

        return TransformersVerificationEngine(
            model_config=manifest.model.config,
            precision=manifest.toploc.precision,
            top_k=manifest.toploc.top_k,
            chunk_tokens=manifest.toploc.chunk_tokens,
            device=self._device(),
            policies_kept=manifest.grpo.async_level + 2,
        )

    def training(self, manifest: RunManifest) -> TrainingEngine:
        """Return an engine that does GRPO steps."""
        from roles.engines.training.engine import TorchTrainingEngine  # noqa: PLC0415 - torch takes seconds

        grpo = manifest.grpo
        return TorchTrainingEngine(
            model_config=manifest.model.config,
            precision=manifest.model.dtype,
            temperature=manifest.sampling.temperature,
            learning_rate=grpo.learning_rate,
            epsilon=grpo.epsilon,
            delta=grpo.delta,
            gradient_clip=grpo.gradient_clip,
            weight_decay=grpo.weight_decay,
            adam_betas=grpo.adam_betas,
            entropy_coefficient=grpo.entropy_coefficient,
            warmup_steps=grpo.warmup_steps,
            device=self._device(),
        )

    def _device(self) -> str:
        if self._requested_device != "auto":
            return self._requested_device
        import torch  # noqa: PLC0415 - takes seconds

        return "cuda" if torch.cuda.is_available() else "cpu"
