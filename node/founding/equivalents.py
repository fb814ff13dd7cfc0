"""Names of recipe keys in other trainers, for users of those.

Sources: prime-rl 0.8.0 (559b447, 2026-08-21; ``rl.toml``), TRL 1.10.0.dev0 (f2cd577, 2026-07-24;
``GRPOConfig`` with the keys inherited from transformers' ``TrainingArguments``) and verl 0.8.0.dev
(b178a3c, 2026-01-29; ``ppo_trainer.yaml``). Brackets note differences in meaning. Trainers without
a counterpart are omitted.
"""

from collections.abc import Mapping
from types import MappingProxyType

PRIME_RL, TRL, VERL = "prime-rl", "TRL", "verl"

EQUIVALENTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "name": {
            PRIME_RL: "run.name",
            TRL: "run_name",
            VERL: "trainer.experiment_name",
        },
        "model.name": {
            PRIME_RL: "model.name",
            TRL: "model_name_or_path",
            VERL: "actor_rollout_ref.model.path",
        },
        "model.dtype": {
            PRIME_RL: "inference.vllm.dtype",
            TRL: "model_init_kwargs (its dtype)",
            VERL: "actor_rollout_ref.rollout.dtype",
        },
        "model.head": {
            PRIME_RL: "inference.enable_fp32_lm_head",
            TRL: "cast_lm_head_to_fp32",
        },
        "environment.name": {
            PRIME_RL: "orchestrator.train.source.env.taskset.id",
            TRL: "dataset_name, and the reward functions",
            VERL: "data.train_files, and the reward function",
        },
        "sampling.temperature": {
            PRIME_RL: "orchestrator.train.sampling.temperature",
            TRL: "temperature",
            VERL: "actor_rollout_ref.rollout.temperature",
        },
        "sampling.group_size": {
            PRIME_RL: "orchestrator.group_size",
            TRL: "num_generations",
            VERL: "actor_rollout_ref.rollout.n",
        },
        "sampling.tokens_max": {
            PRIME_RL: "orchestrator.train.sampling.max_completion_tokens",
            TRL: "max_completion_length",
            VERL: "data.max_response_length",
        },
        "sampling.length_penalty": {
            PRIME_RL: "orchestrator.algo.length_penalty (relative to the longest of the group)",
        },
        "grpo.learning_rate": {
            PRIME_RL: "trainer.optim.lr",
            TRL: "learning_rate",
            VERL: "actor_rollout_ref.actor.optim.lr",
        },
        "grpo.optimiser": {
            PRIME_RL: "trainer.optim.type",
            TRL: "optim",
            VERL: "actor_rollout_ref.actor.optim.optimizer",
        },
        "grpo.schedule": {
            PRIME_RL: "trainer.scheduler.type",
            TRL: "lr_scheduler_type",
            VERL: "actor_rollout_ref.actor.optim.lr_scheduler_type",
        },
        "grpo.loss.kind": {
            PRIME_RL: "trainer.loss.type (default is dppo_tv)",
            TRL: "loss_type, importance_sampling_level",
            VERL: "actor_rollout_ref.actor.policy_loss.loss_mode",
        },
        "grpo.loss.epsilon": {
            PRIME_RL: "trainer.loss.dppo_mask_low",
            TRL: "epsilon",
            VERL: "actor_rollout_ref.actor.clip_ratio_low",
        },
        "grpo.loss.epsilon_high": {
            PRIME_RL: "trainer.loss.dppo_mask_high",
            TRL: "epsilon_high (with CISPO the ratio itself, here plus one)",
            VERL: "actor_rollout_ref.actor.clip_ratio_high",
        },
        "grpo.loss.delta": {
            TRL: "delta",
            VERL: "actor_rollout_ref.actor.clip_ratio_c",
        },
        "grpo.loss.aggregation": {
            TRL: "loss_type (dapo, grpo, dr_grpo)",
            VERL: "actor_rollout_ref.actor.loss_agg_mode",
        },
        "grpo.loss.advantage": {
            TRL: "scale_rewards",
            VERL: "algorithm.norm_adv_by_std_in_grpo",
        },
        "grpo.loss.importance_cap": {
            TRL: "vllm_importance_sampling_clip_max (of token_truncate)",
            VERL: "algorithm.rollout_correction.rollout_is_threshold",
        },
        "grpo.loss.mask_truncated": {
            TRL: "mask_truncated_completions",
        },
        "grpo.loss.entropy_coefficient": {
            TRL: "entropy_coef",
            VERL: "actor_rollout_ref.actor.entropy_coeff",
        },
        "grpo.loss.kl_coefficient": {
            TRL: "beta",
            VERL: "actor_rollout_ref.actor.kl_loss_coef",
        },
        "grpo.loss.log_ratio_coefficient": {
            PRIME_RL: "trainer.loss.kl_tau",
        },
        "grpo.gradient_clip": {
            PRIME_RL: "trainer.optim.max_norm",
            TRL: "max_grad_norm",
            VERL: "actor_rollout_ref.actor.grad_clip",
        },
        "grpo.weight_decay": {
            PRIME_RL: "trainer.optim.weight_decay",
            TRL: "weight_decay",
            VERL: "actor_rollout_ref.actor.optim.weight_decay",
        },
        "grpo.adam_betas": {
            PRIME_RL: "trainer.optim.betas1, trainer.optim.betas2",
            TRL: "adam_beta1, adam_beta2",
            VERL: "actor_rollout_ref.actor.optim.betas",
        },
        "grpo.adam_epsilon": {
            TRL: "adam_epsilon",
        },
        "grpo.warmup_steps": {
            PRIME_RL: "trainer.scheduler.warmup_steps",
            TRL: "warmup_steps",
            VERL: "actor_rollout_ref.actor.optim.lr_warmup_steps",
        },
        "grpo.updates_per_version": {
            TRL: "steps_per_generation / gradient_accumulation_steps",
            VERL: "data.train_batch_size / actor_rollout_ref.actor.ppo_mini_batch_size",
        },
        "grpo.rollouts_per_step": {
            PRIME_RL: "orchestrator.batch_size (in answers)",
            TRL: "generation_batch_size (in answers)",
            VERL: "data.train_batch_size (in prompts)",
        },
        "grpo.refill_max": {
            VERL: "algorithm.filter_groups.max_num_gen_batches (in batches)",
        },
        "grpo.rollouts_ahead": {
            TRL: "queue_maxsize (of AsyncGRPOConfig, in answers)",
        },
        "grpo.async_level": {
            PRIME_RL: "orchestrator.max_off_policy_steps",
            TRL: "max_staleness (of AsyncGRPOConfig)",
        },
        "grpo.steps": {
            PRIME_RL: "max_steps",
            TRL: "max_steps",
            VERL: "trainer.total_training_steps",
        },
        "shardcast.versions_kept": {
            PRIME_RL: "ckpt.keep_last",
            TRL: "save_total_limit",
            VERL: "trainer.max_actor_ckpt_to_keep",
        },
        "shardcast.state_every": {
            PRIME_RL: "ckpt.interval",
            TRL: "save_steps",
            VERL: "trainer.save_freq",
        },
        "evaluation.every_versions": {
            PRIME_RL: "orchestrator.eval.interval",
            TRL: "eval_steps",
            VERL: "trainer.test_freq",
        },
    }
)
