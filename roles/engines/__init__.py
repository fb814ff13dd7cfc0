"""What generates: a batched decode loop over Qwen2 weights, and what all engines share.

Read ``policy`` (weights on disk, their identity), ``decoder`` (the loop), then ``transformers``
(the engine behind the port). Validators and trainers use ``policy`` and ``worker`` too.
"""
