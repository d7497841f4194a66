# SPDX-License-Identifier: Apache-2.0
"""What all tests share: how hypothesis searches, and where real data lives."""

import importlib.util
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

settings.register_profile("here", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("here"), derandomize=True, print_blob=True)
settings.register_profile("thorough", settings.get_profile("here"), max_examples=1500)
settings.load_profile("ci" if os.environ.get("CI") else "here")

if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a job in the background ignores it, and so would children


@pytest.fixture(scope="session", autouse=True)
def device_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A device key for sealed recipes, in place of the one of whoever runs the tests."""
    place = tmp_path_factory.mktemp("keys") / "device.key"
    place.write_bytes(os.urandom(32))
    place.chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFUMATO_KEY", str(place))
        yield place


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data: SFUMATO_DATA, by default ../shared/data beside the repository."""
    folder = Path(os.environ.get("SFUMATO_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"needs real data: {folder} is missing; set SFUMATO_DATA")
    return folder


@pytest.fixture(scope="session")
def make_encoder() -> Callable[..., Any]:
    """Make an encoder that was never trained: orthogonal weights, a ReLU after every other layer."""
    from sfumato.learn.encoder import Encoder

    def make(seed: int = 0, dims: tuple[int, ...] = (128, 256, 128), name: str = "sift", **card: object) -> Encoder:
        rng, layers = np.random.default_rng(seed), []
        for number, (into, out) in enumerate(itertools.pairwise(dims)):
            tall = np.linalg.qr(rng.normal(size=(max(out, into), min(out, into))))[0]
            bias = rng.normal(0, 0.05, out).astype(np.float32)
            weight = (tall if out >= into else tall.T).astype(np.float32)
            layers.append((weight, bias, number % 2 == 0 and number < len(dims) - 2))
        return Encoder(layers=tuple(layers), extractor_name=name, card=card)

    return make


@pytest.fixture(scope="session")
def places() -> ModuleType:
    """The module tests/geometry/places.py, which makes a place to map and pictures to localize in it."""
    spec = importlib.util.spec_from_file_location("tests_places", ROOT / "tests" / "geometry" / "places.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
