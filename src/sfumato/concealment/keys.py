# SPDX-License-Identifier: Apache-2.0
"""Device keys: where they are, how they are read, made and derived; and the keys of evaluations.

Devices whose features are to match share one key, and a server never gets it. A key file is refused if its content
could be guessed, because archives show a fingerprint of the key on which anyone can try guesses. The keys of
evaluations are public and protect nobody.
"""

import hashlib
import os
import secrets
import stat
import warnings
from pathlib import Path

from sfumato.errors import FileError, InputError, NewKeyWarning, WeakSecretWarning

KEY_BYTES = 32
SHORTEST_KEY = 16
SHORTEST_TEXT = 32
"""Hexadecimal digits of 16 random bytes; what people think of and type is shorter, or not random at all."""
LARGEST_KEY = 2**20
"""Bytes of a key file; a larger file is something else."""

EVALUATION_KEY = b"the key of all evaluations, which protects nobody"
"""Stands here for anyone to read: a recipe that names a seal of it is sealed without a secret key."""
SEEDED = b"evaluation seed "


def new_key() -> bytes:
    """Return a new device key: 32 bytes from the operating system's cryptographic source.

    >>> len(new_key())
    32
    """
    return secrets.token_bytes(KEY_BYTES)


def device_key(path: str | os.PathLike[str] | None = None) -> bytes:
    """Return the device key in a file, by default this user's; make the file at first use, readable by its owner only.

    The default is ``$SFUMATO_KEY``, or ``sfumato/device.key`` below the folder of settings. Copy the file to all
    devices whose features are to match, and keep it from every server. A new file is announced by a NewKeyWarning.

    Raises FileError for a file that cannot be read or written, and for a key that can be guessed.

    >>> import tempfile, warnings
    >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
    ...     device_key(f"{folder}/device.key") == device_key(f"{folder}/device.key")
    True
    """
    place = device_key_path() if path is None else Path(path)
    if not place.exists():
        _write_key(place)
    return read_key(place)


def device_key_path() -> Path:
    """Return the path of this user's device key: $SFUMATO_KEY, or a file below the folder of settings."""
    path = os.environ.get("SFUMATO_KEY")
    settings = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(path) if path else Path(settings) / "sfumato" / "device.key"


def read_key(path: str | os.PathLike[str]) -> bytes:
    """Read a device key from a file; warn, as ssh does, if others may read it too.

    Raises FileError for a file that cannot be read, is not a regular file or too large, and for a key that can be
    guessed.
    """
    advice = f"make one with: (umask 077; head -c {KEY_BYTES} /dev/urandom > {path})"
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # opening a pipe must not wait
        with os.fdopen(descriptor, "rb") as file:
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode):
                raise FileError(f"{path}: not a regular file; pass a key file of at least {SHORTEST_KEY} bytes")
            key = file.read(LARGEST_KEY + 1)
    except FileError:
        raise
    except OSError as cause:
        raise FileError(f"{path}: cannot read the device key ({cause.strerror}); {advice}") from cause
    if len(key) > LARGEST_KEY:
        raise FileError(f"{path}: not a device key: it has more than {LARGEST_KEY} bytes; {advice}")
    if is_weak(key):
        raise FileError(
            f"{path}: this device key can be guessed: it is short, regular, or a text that someone could think of; "
            f"{advice}"
        )
    if os.name == "posix" and info.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        mode = stat.S_IMODE(info.st_mode)
        warnings.warn(
            f"{path}: others may read this device key (mode {mode:04o}): chmod 600 {path}",
            WeakSecretWarning,
            stacklevel=2,
        )
    return key


def _write_key(path: Path) -> None:
    """Write a new device key that its owner alone may read, never over another one; announce it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(new_key())
            file.flush()
            os.fsync(file.fileno())
    except OSError as cause:
        raise FileError(
            f"{path}: cannot write a device key ({cause.strerror}): name one with --secret-file or $SFUMATO_KEY"
        ) from cause
    warnings.warn(
        f"made a device key, {path}: copy it to all devices whose features are to match, and keep it from every "
        f"server; features sealed under a lost key match nothing new",
        NewKeyWarning,
        stacklevel=4,
    )


def key_for_place(key: bytes, place: str) -> bytes:
    """Return the key of a place, derived from a device key: features sealed for one place never match another.

    A key can be recovered from 1,000 to 2,000 descriptors that are known together with their codes. Anyone who
    photographed one place, or has a photo sealed there, can then read that place and no other.

    Raises InputError for an empty name.

    >>> key_for_place(bytes(32), "town hall") == key_for_place(bytes(32), "museum")
    False
    """
    if not isinstance(place, str) or not place.strip():
        raise InputError("a place needs a name, the same on all devices whose features are to match there")
    hashed = hashlib.blake2b(key, digest_size=32).digest()
    return hashlib.blake2b(place.strip().encode(), key=hashed, person=b"sfumato place", digest_size=32).digest()


def sealing_key(secret: bytes | None, evaluation_seed: int | None) -> bytes | None:
    """Return the key for a seal: the secret, or a public one made from an evaluation seed; None for neither."""
    if secret is not None or evaluation_seed is None:
        return secret
    return SEEDED + b"%d" % evaluation_seed


def is_public(key: bytes) -> bool:
    """Tell whether a key is one of evaluations, which protects nobody."""
    return bytes(key) == EVALUATION_KEY or bytes(key).startswith(SEEDED)


def is_weak(secret: bytes) -> bool:
    """Tell whether a secret is too short, too regular, or a text too short or too much like words, to be random.

    Random bytes are hardly ever a text. A text made from random bytes has 32 characters or more: hexadecimal digits,
    or many different capitals, small letters and digits, without spaces.
    """
    if len(secret) < SHORTEST_KEY or len(set(secret)) < 8:
        return True
    try:
        text = bytes(secret).decode("utf-8").strip()
    except UnicodeDecodeError:
        return False
    if not text.replace("\n", " ").isprintable():
        return False
    is_mixed = all(any(test(c) for c in text) for test in (str.isupper, str.islower, str.isdigit))
    is_base_64 = is_mixed and len(set(text)) >= SHORTEST_TEXT // 2 and not any(c.isspace() for c in text)
    return len(text) < SHORTEST_TEXT or not (is_base_64 or set(text.lower()) <= set("0123456789abcdef"))
