# SPDX-License-Identifier: Apache-2.0
"""Encoders, which move descriptors to another space: trained networks (ninja) and principal components.

``ninja`` is a plain perceptron followed by L2 normalisation (NinjaNet in inference), ``compress`` one linear layer;
both run in numpy alone, so that a device needs no torch. The file format is in docs/reference/file_formats.md.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import FileError, InputError, RecipeError, SfumatoError, suggest
from sfumato.files.tensors import load_tensors, save_tensors
from sfumato.types.arrays import frozen_array
from sfumato.types.extractor import is_label

Floats = NDArray[np.float32]
Layer = tuple[Floats, Floats, bool]

FORMAT, VERSION, KINDS = "sfumato-encoder", "1", ("ninja", "compress")
SUFFIX = ".safetensors"
MOST_LAYERS, WIDEST = 64, 8192
LARGEST_CARD = 2**20
ROWS_AT_ONCE = 4096
DTYPES = {"float16": np.float16, "float32": np.float32}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Encoder:
    """A perceptron: ``layers`` of weight (out, in), bias (out,) float32 and whether a ReLU follows.

    ``extractor_name`` names the descriptors it takes; ``card`` says how it was made, in plain JSON. The result of
    ``ninja`` has unit norm; ``compress`` is one layer without a ReLU, and gives its result as it is. ``checksum`` is of
    the kind and the layers alone, not of the card.
    """

    layers: tuple[Layer, ...]
    extractor_name: str
    kind: str = "ninja"
    card: Mapping[str, Any] = field(default_factory=dict)
    checksum: str = field(init=False)

    def __post_init__(self) -> None:
        if not is_label(self.extractor_name):
            raise InputError(f"extractor_name must be a short text, got {self.extractor_name!r:.80}")
        if self.kind not in KINDS:
            raise InputError(f"it is of kind {self.kind!r:.40}, known are {' and '.join(KINDS)}")
        if not 1 <= len(self.layers) <= MOST_LAYERS:
            raise InputError(f"an encoder has 1 to {MOST_LAYERS} layers, got {len(self.layers)}")
        checked: list[Layer] = []
        for number, (weight, bias, relu) in enumerate(self.layers):
            width = checked[-1][0].shape[0] if checked else None
            rows = frozen_array(weight, f"layer{number}.weight", (None, width))
            if not all(1 <= length <= WIDEST for length in rows.shape):
                raise InputError(f"layer{number}.weight: expected 1 to {WIDEST} rows and columns, got {rows.shape}")
            if not isinstance(relu, bool):
                raise InputError(f"layer{number}: whether a ReLU follows is a truth value")
            checked.append((rows, frozen_array(bias, f"layer{number}.bias", (len(rows),)), relu))
        if self.kind != "ninja" and (len(checked) != 1 or checked[0][2]):
            raise InputError(f"{self.kind} is one layer without a ReLU")
        try:
            card = json.loads(json.dumps(dict(self.card), allow_nan=False))
        except (TypeError, ValueError, RecursionError) as cause:
            raise InputError("card: expected plain JSON values") from cause
        object.__setattr__(self, "layers", tuple(checked))
        object.__setattr__(self, "card", MappingProxyType(card))
        object.__setattr__(self, "checksum", _checksum(self.kind, self.layers))

    @property
    def input_dim(self) -> int:
        """Dimension of a descriptor."""
        return int(self.layers[0][0].shape[1])

    @property
    def output_dim(self) -> int:
        """Dimension of an encoded descriptor."""
        return int(self.layers[-1][0].shape[0])

    def __repr__(self) -> str:
        dims = f"{self.input_dim} to {self.output_dim} dimensions, {len(self.layers)} layers"
        return f"Encoder({self.kind}, {self.extractor_name}, {dims}, {self.checksum[:12]})"


def encode(encoder: Encoder, points: ArrayLike) -> Floats:
    """Return descriptors (N, n) in the encoder's space, (N, n') float32; those of a ninja have unit norm.

    A function of each row alone, without any draw: the same row always gives the same numbers (summed in float64, and
    so to the last bit in nearly every case, whatever the other rows are).

    Raises InputError for rows of another dimension, rows that are not finite, and rows that become zero.
    """
    rows = frozen_array(points, "points", (None, None))
    if rows.shape[1] != encoder.input_dim:
        raise InputError(f"this encoder takes {encoder.input_dim} dimensions, the points have {rows.shape[1]}")
    result = np.empty((len(rows), encoder.output_dim), np.float32)
    layers = [(weight.astype(np.float64).T, bias.astype(np.float64), relu) for weight, bias, relu in encoder.layers]
    for start in range(0, len(rows), ROWS_AT_ONCE):
        x = rows[start : start + ROWS_AT_ONCE].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            for weight, bias, relu in layers:
                x = x @ weight
                x += bias
                if relu:
                    np.maximum(x, 0, out=x)
            lengths = np.linalg.norm(x, axis=1, keepdims=True)
        if encoder.kind == "compress" and np.isfinite(lengths).all():
            lengths[:] = 1  # the mean descriptor becomes 0
        if not (np.isfinite(lengths) & (lengths > 0)).all():
            raise InputError("this encoder turns rows into zeros or NaN: it is damaged, use another")
        result[start : start + len(x)] = x / lengths
    result.setflags(write=False)
    return result


def save_encoder(path: str | os.PathLike[str], encoder: Encoder, dtype: str = "float16") -> Encoder:
    """Write an encoder, atomically, and return it as a reader gets it: rounded to 16 bits unless ``dtype`` is float32.

    The rounded one has a checksum of its own.

    Raises FileError if the file cannot be written, InputError for weights too large for 16 bits.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r:.80}")
    with np.errstate(over="ignore"):
        arrays = {
            f"layer{number}.{part}": array.astype(DTYPES[dtype])
            for number, (weight, bias, _) in enumerate(encoder.layers)
            for part, array in (("weight", weight), ("bias", bias))
        }
    relu = ",".join(str(int(flag)) for _, _, flag in encoder.layers)
    card = json.dumps(dict(encoder.card), sort_keys=True, allow_nan=False)
    texts = {"format": FORMAT, "version": VERSION, "kind": encoder.kind, "relu": relu, "card": card}
    texts["extractor"] = encoder.extractor_name
    rounded = _from_arrays(arrays, texts)
    save_tensors(path, arrays, texts)
    return rounded


def cut_components(encoder: Encoder, dim: int) -> Encoder:
    """Return the ``dim`` strongest principal components.

    Raises InputError for another encoder, and if there are fewer.
    """
    if encoder.kind != "compress":
        raise InputError(f"only principal components can be cut to {dim} of them, this is a {encoder.kind}")
    if not 1 <= dim <= encoder.output_dim:
        raise InputError(f"it holds {encoder.output_dim} principal components, not {dim}")
    ((weight, bias, relu),) = encoder.layers
    layer = (weight[:dim], bias[:dim], relu)
    return replace(encoder, layers=(layer,)) if dim < encoder.output_dim else encoder


def load_encoder(path: str | os.PathLike[str]) -> Encoder:
    """Read an encoder made by ``sfumato train ninja`` or ``sfumato train compress``.

    Raises FileError for a missing, damaged or hostile file, one of another kind, or of a newer version.
    """
    arrays, texts = load_tensors(path)
    if not is_encoder_file(texts):
        raise FileError(f"{path}: this is not an encoder: give a file made by sfumato train ninja or train compress")
    version = texts.get("version")
    if version != VERSION:
        raise FileError(f"{path}: it has version {version!r:.20}, this program reads version {VERSION}: update it")
    try:
        return _from_arrays(arrays, texts)
    except SfumatoError as cause:
        raise FileError(f"{path}: not a usable encoder: {cause}") from cause


def is_encoder_file(texts: Mapping[str, str]) -> bool:
    """Tell by the texts of a safetensors file whether it is an encoder."""
    return texts.get("format") == FORMAT


def bundled_names(kind: str = "ninja") -> tuple[str, ...]:
    """Return the names of the encoders of a kind that come with the package, sorted."""
    folder, prefix = resources.files("sfumato.concealment") / "data", f"{kind}-"
    files = [place.name for place in folder.iterdir()] if folder.is_dir() else []
    return tuple(sorted(n[len(prefix) : -len(SUFFIX)] for n in files if n.startswith(prefix) and n.endswith(SUFFIX)))


def bundled_encoder(name: str, kind: str = "ninja") -> Encoder:
    """Return an encoder that comes with the package, by its name, for example ``sift-2.5``.

    Raises RecipeError naming the bundled ones.
    """
    known = bundled_names(kind)
    if name not in known:
        names = [f"{kind}-{one}" for one in known]
        bundled = f"there are {', '.join(names)}" if names else "none come with this version"
        near = suggest(f"{kind}-{name}", names)
        own = "ninja:FILE" if kind == "ninja" else "compress-48:FILE"
        raise RecipeError(
            f"no encoder {kind}-{name!s:.80} comes with the package{near}: {bundled}; name your own by its file, {own}"
        )
    with resources.as_file(resources.files("sfumato.concealment") / "data" / f"{kind}-{name}{SUFFIX}") as place:
        return load_encoder(place)


def _from_arrays(arrays: Mapping[str, NDArray[Any]], texts: Mapping[str, str]) -> Encoder:
    """Return the encoder of named arrays and texts; raise InputError for arrays that do not fit."""
    flags = texts.get("relu", "").split(",")
    if len(flags) > MOST_LAYERS or any(flag not in ("0", "1") for flag in flags):
        raise InputError(f"relu must be 0 or 1 for each of up to {MOST_LAYERS} layers, with commas")
    expected = [f"layer{number}.{part}" for number in range(len(flags)) for part in ("weight", "bias")]
    wrong = sorted(set(expected) ^ set(arrays))
    if wrong:
        raise InputError(
            f"it must hold weight and bias of {len(flags)} layers; {wrong[0]!r:.80} is missing or does not belong there"
        )
    kinds = {str(array.dtype) for array in arrays.values()}
    if not kinds <= set(DTYPES):
        raise InputError(f"numbers must be {' or '.join(DTYPES)}, not {', '.join(sorted(kinds))}")
    layers = tuple(
        (arrays[f"layer{number}.weight"].astype(np.float32), arrays[f"layer{number}.bias"].astype(np.float32), f == "1")
        for number, f in enumerate(flags)
    )
    card = _parsed_card(texts.get("card", "{}"))
    return Encoder(layers=layers, extractor_name=texts.get("extractor", ""), kind=texts.get("kind", ""), card=card)


def _parsed_card(text: str) -> dict[str, Any]:
    try:
        card = json.loads(text) if len(text) <= LARGEST_CARD else None
    except (ValueError, RecursionError) as cause:
        raise InputError("its card is not JSON") from cause
    if not isinstance(card, dict):
        raise InputError("its card is not a mapping, or too large")
    return card


def _checksum(kind: str, layers: tuple[Layer, ...]) -> str:
    digest = hashlib.blake2b(digest_size=32, person=b"sfumato-encoder")
    if kind != "ninja":
        digest.update(kind.encode())
    for weight, bias, relu in layers:
        digest.update(np.array([*weight.shape, relu], "<i8").tobytes())
        digest.update(weight.astype("<f4").tobytes() + bias.astype("<f4").tobytes())
    return digest.hexdigest()
