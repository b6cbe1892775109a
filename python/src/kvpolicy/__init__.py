# SPDX-License-Identifier: Apache-2.0
"""KV-cache policies for arrays of NumPy, PyTorch and JAX.

`decide` says which entries of a KV cache a policy keeps. `Evictor` does so step by step, for an engine that appends,
observes and evicts. `kvpolicy.hf.evict` evicts in models of transformers.
"""

from ._decide import Kept, decide
from ._device import has_device
from ._native import Evictor, PolicyFacts, policy_facts, scorers
from ._native import __version__  # type: ignore[attr-defined]  # the stub has no names of Python's own
from ._score import Layer

__all__ = ["Evictor", "Kept", "Layer", "PolicyFacts", "__version__", "decide", "has_device", "policy_facts", "scorers"]
