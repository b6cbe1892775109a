"""The presses of kvpress as policies."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import kvpolicy
from kvpolicy.presses import PRESSES, KnormPress, SnapKVPress

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.skipif(not (ROOT / "make_presses.py").exists(), reason="only a checkout has the table")
def test_the_module_is_what_the_table_says():
    spec = importlib.util.spec_from_file_location("make_presses", ROOT / "make_presses.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    assert make.module_of((ROOT / "presses.txt").read_text()) == (ROOT / "src" / "kvpolicy" / "presses.py").read_text()


@pytest.mark.parametrize("name", PRESSES)
def test_every_press_is_a_policy(name):
    facts = kvpolicy.policy_facts(PRESSES[name](compression_ratio=0.5).policy())
    assert "budget(ratio=0.5, rounding=kvpress" in facts.text


def test_parameters_reach_the_scorer():
    assert SnapKVPress(0.25, window_size=32, kernel_size=7).policy() == "snapkv(window=32, pool=avg:7) | budget(ratio=0.25, rounding=kvpress)"


def test_a_ratio_counts_as_kvpress_counts():
    keys = np.random.default_rng(0).standard_normal((2, 101, 8), dtype=np.float32)
    for ratio in (0.0, 0.1, 0.3, 0.5, 0.99):
        made = kvpolicy.decide(KnormPress(ratio).policy(), keys=keys)
        assert (made.counts == max(1, int(101 * (1 - ratio)))).all()
