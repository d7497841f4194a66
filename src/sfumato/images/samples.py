# SPDX-License-Identifier: Apache-2.0
"""Sample photos from the scikit-image package: nothing is downloaded, and nothing is stored here.

The files are read from the installed package, not through ``skimage.data``, which may ask a cache or the network.
"""

from importlib.util import find_spec
from pathlib import Path

from sfumato.errors import ImageError, InputError, MissingDependency, suggest
from sfumato.images.read import read_image
from sfumato.types.clear import Image

FILES = {
    "astronaut": "astronaut.png",
    "brick": "brick.png",
    "camera": "camera.png",
    "chelsea": "chelsea.png",
    "clock": "clock_motion.png",
    "coffee": "coffee.png",
    "coins": "coins.png",
    "grass": "grass.png",
    "gravel": "gravel.png",
    "hubble": "hubble_deep_field.jpg",
    "moon": "moon.png",
    "motorcycle-left": "motorcycle_left.png",
    "motorcycle-right": "motorcycle_right.png",
    "page": "page.png",
    "retina": "retina.jpg",
    "rocket": "rocket.jpg",
}
"""Sample name to file name; the two motorcycles are a stereo pair."""


def sample_names() -> list[str]:
    """Return the names of the samples that the installed scikit-image carries, sorted."""
    folder = _folder()
    return [name for name, file in sorted(FILES.items()) if (folder / file).is_file()]


def sample_paths() -> dict[str, Path]:
    """Return the path of each sample, by name."""
    folder = _folder()
    return {name: folder / FILES[name] for name in sample_names()}


def sample_image(name: str) -> Image:
    """Return a sample photo.

    >>> sample_image("coffee").size
    (600, 400)

    Raises InputError for an unknown name, ImageError if the installed scikit-image does not carry it.
    """
    if name not in FILES:
        raise InputError(f"no sample is called {name!r:.80}{suggest(name, FILES)}; there are {', '.join(FILES)}")
    path = _folder() / FILES[name]
    if not path.is_file():
        raise ImageError(f"the installed scikit-image does not carry {path.name}: choose another of {sample_names()}")
    return read_image(path, name)


def _folder() -> Path:
    spec = find_spec("skimage")
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependency("sample photos come with scikit-image: pip install scikit-image")
    return Path(spec.submodule_search_locations[0]) / "data"
