"""What engines compute: dense decoders of Hugging Face, one file for each architecture.

``configuration`` reads what a manifest or a ``config.json`` says and refuses by name what is not
computed; ``model`` builds Hugging Face's module; ``decoder`` and engines elsewhere know no names.
"""
