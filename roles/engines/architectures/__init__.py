"""Model architectures: Hugging Face's dense decoders.

``configuration`` reads a manifest or a ``config.json`` and rejects unsupported keys by name.
``model`` builds Hugging Face's module. Engines elsewhere know no architecture by name.
"""
