# SPDX-License-Identifier: Apache-2.0
import ast
import base64
import hashlib
import inspect
import os
from hashlib import sha256

import numpy as np
import pytest
from scipy import stats

from sfumato.concealment import randomness
from sfumato.concealment.keys import is_weak
from sfumato.concealment.randomness import KeyedDraws, SeededDraws, SystemDraws, distinct_integers, normal, uniform
from sfumato.errors import InputError

SECRET = sha256(b"4").digest()
RANDOM = hashlib.sha256(b"looks random").digest()
POINTS = np.arange(24, dtype=np.float32).reshape(6, 4)
ROWS = np.arange(6)


def test_system_draws_come_from_the_operating_system(monkeypatch):
    asked = []
    monkeypatch.setattr(os, "urandom", lambda count: asked.append(count) or bytes(count))
    assert SystemDraws().of_rows(ROWS, 10, 0).shape == (6, 10)
    assert len(set(SystemDraws().of_image(6).tolist())) == 1
    assert asked == [60, 8]


def test_numpy_generators_serve_evaluations_only():
    """The word default_rng may stand in SeededDraws and nowhere else in the concealment of descriptors."""
    tree = ast.parse(inspect.getsource(randomness))
    users = {
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and "default_rng" in ast.unparse(node)
    }
    assert users == {"SeededDraws"}


def test_keyed_draws_belong_to_secret_context_descriptor_and_attempt():
    draws = KeyedDraws(SECRET, "random-2 in 4", POINTS)
    first = draws.of_rows(ROWS, 40, 0)
    assert np.array_equal(first, KeyedDraws(SECRET, "random-2 in 4", POINTS).of_rows(ROWS, 40, 0))
    assert np.array_equal(first[[4, 1]], draws.of_rows(np.array([4, 1]), 40, 0))
    others = [
        KeyedDraws(SECRET[::-1], "random-2 in 4", POINTS).of_rows(ROWS, 40, 0),
        KeyedDraws(SECRET, "random-3 in 4", POINTS).of_rows(ROWS, 40, 0),
        KeyedDraws(SECRET, "random-2 in 4", POINTS + 1).of_rows(ROWS, 40, 0),
        draws.of_rows(ROWS, 40, 1),
        np.roll(first, 1, axis=0),
    ]
    assert all((first != other).any(axis=1).all() for other in others)


def test_keyed_draws_take_minus_zero_for_zero():
    zero, minus = np.zeros((1, 4), np.float32), -np.zeros((1, 4), np.float32)
    row = np.array([0])
    assert np.array_equal(
        KeyedDraws(SECRET, "x", zero).of_rows(row, 32, 0), KeyedDraws(SECRET, "x", minus).of_rows(row, 32, 0)
    )


@pytest.mark.parametrize("secret", [b"", "a text that is long enough", 12345, None])
def test_secrets_that_are_none_are_refused(secret):
    with pytest.raises(InputError, match="new_key"):
        KeyedDraws(secret, "x", POINTS)


@pytest.mark.parametrize("secret", [b"short", b"a" * 40, b"0123456789abcde"])
def test_guessable_secrets_are_refused(secret):
    with pytest.raises(InputError, match="new_key"):
        KeyedDraws(secret, "x", POINTS)


def test_one_seed_gives_different_images_different_draws():
    first = SeededDraws(3, "x", POINTS).of_rows(ROWS, 16, 0)
    assert np.array_equal(first, SeededDraws(3, "x", POINTS).of_rows(ROWS, 16, 0))
    assert not np.array_equal(first, SeededDraws(3, "x", POINTS + 1).of_rows(ROWS, 16, 0))
    assert not np.array_equal(first, SeededDraws(4, "x", POINTS).of_rows(ROWS, 16, 0))


def test_uniform_and_normal_have_their_laws():
    drawn = np.random.default_rng(5).integers(256, size=(1, 80_000), dtype=np.uint8)
    assert stats.kstest(uniform(drawn)[0], stats.uniform(-1, 2).cdf).pvalue > 1e-3
    numbers = normal(drawn)[0]
    assert stats.kstest(numbers, stats.norm.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(np.split(numbers, 2))[0, 1]) < 0.03


def test_extreme_bytes_stay_inside():
    extremes = np.array([[0] * 8, [255] * 8], np.uint8)
    assert (np.abs(uniform(extremes)) < 1).all()
    assert np.isfinite(normal(extremes)).all()


def test_distinct_integers_are_distinct_and_every_subset_is_equally_likely():
    drawn = np.random.default_rng(6).integers(256, size=(30_000, 16), dtype=np.uint8)
    chosen = distinct_integers(drawn, np.full(30_000, 5))
    assert (chosen[:, 0] != chosen[:, 1]).all()
    assert chosen.min() == 0
    assert chosen.max() == 4
    low, high = chosen.min(axis=1), chosen.max(axis=1)
    _, counts = np.unique(low * 5 + high, return_counts=True)
    assert len(counts) == 10
    assert stats.chisquare(counts).pvalue > 1e-3


def test_as_many_distinct_integers_as_there_are():
    drawn = np.random.default_rng(7).integers(256, size=(50, 32), dtype=np.uint8)
    assert np.array_equal(np.sort(distinct_integers(drawn, np.full(50, 4)), axis=1), np.tile(np.arange(4), (50, 1)))


@pytest.mark.parametrize(
    ("secret", "weak"),
    [
        (b"a", True),
        (bytes(16), True),
        (b"passwordpassword1", True),
        ("Zwölf Boxkämpfer".encode(), True),
        (b"correct horse battery staple and Ten donkeys", True),
        (b"PasswordPasswordPasswordPassword1", True),
        (bytes(range(32)).hex()[:31].encode(), True),  # 31 digits
        (b"0123456789abcdef" * 2, True),
        (b"MyDogAteMyHomeworkYesterdayAndItWasNotFunny1", True),
        (b"MyD0gAt3MyH0m3w0rkY3st3rdayAndItWasN0tFunny1", True),
        ("Die Straße führt über die Brücke".encode("latin-1"), True),
        ("Die Straße führt über die Brücke".encode("utf-16"), True),
        (bytes(range(240, 256)), True),
        (bytes(range(7, 39)), True),
        (bytes(range(7, 39)).hex().encode(), True),
        (SECRET, False),
        (RANDOM[:16] * 2, True),
        (RANDOM[:16], False),
        (RANDOM, False),
        (RANDOM[:16].hex().encode() + b"\n", False),  # openssl rand -hex 16
        (base64.b64encode(RANDOM) + b"\n", False),  # openssl rand -base64 32
        (base64.b64encode(RANDOM[:24]), True),  # as short as a phrase
    ],
)
def test_what_people_think_of_is_weak(secret, weak):
    assert is_weak(secret) == weak


def test_random_bytes_are_not_weak():
    assert not any(is_weak(os.urandom(32)) for _ in range(500))
