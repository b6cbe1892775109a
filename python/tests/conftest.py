# SPDX-License-Identifier: Apache-2.0
"""The models of these tests are so small that more threads of PyTorch only wait for each other.

With KVPOLICY_TEST_DEVICE set, decisions are made on the emulated device, for which the package was built.
"""

import os
import sys

import pytest

try:
    import torch
except ImportError:
    pass
else:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def on_the_emulated_device(monkeypatch):
    if os.environ.get("KVPOLICY_TEST_DEVICE"):
        for module in {"kvpolicy._decide", "kvpolicy.hf"} & set(sys.modules):
            monkeypatch.setattr(f"{module}.placement", lambda arrays: {"device": 0})
