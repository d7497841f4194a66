# SPDX-License-Identifier: Apache-2.0
"""Keys of devices and of people: where they are, how they are read, made and derived; and the keys of evaluations.

Devices whose features are to match share one key, and a server never gets it. A key file is refused if its content
could be guessed, because archives show a fingerprint of the key on which anyone can try guesses, and fast. The keys of
evaluations are public and protect nobody.
"""

import base64
import binascii
import hashlib
import os
import secrets
import stat
import string
import warnings
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from sfumato.errors import FileError, InputError, NewKeyWarning, WeakSecretWarning
from sfumato.files.atomic import file_lock, open_file, read_bytes, write_file

KEY_BYTES = 32
SHORTEST_KEY = 16
LARGEST_KEY = 2**20
"""Bytes of a key file; a larger file is something else."""

LONGEST_NAME = 200
"""Characters of a file's name; a person with a longer one gets a digest."""

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
    Processes that need it at the same time get the same key. An empty file never was a key, and is replaced.

    Raises FileError for a file that cannot be read or written, and for a key that can be guessed.

    >>> import tempfile, warnings
    >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
    ...     device_key(f"{folder}/device.key") == device_key(f"{folder}/device.key")
    True
    """
    place = device_key_path() if path is None else Path(path)
    if _is_free(place):
        _make_key(place)
    return read_key(place)


def device_key_path() -> Path:
    """Return the path of this user's device key: $SFUMATO_KEY, or a file below the folder of settings."""
    path = os.environ.get("SFUMATO_KEY")
    return Path(path) if path else _settings() / "device.key"


def _settings() -> Path:
    """Return the folder of settings."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")) / "sfumato"


def read_key(path: str | os.PathLike[str]) -> bytes:
    """Read a device key from a file; warn, as ssh does, if others may read it too.

    Raises FileError for a file that cannot be read, is not a regular file or too large, and for a key that can be
    guessed.
    """
    advice = f"make one with: (umask 077; head -c {KEY_BYTES} /dev/urandom > new.key)"
    try:
        with open_file(path, LARGEST_KEY) as file:
            info, key = os.fstat(file.fileno()), file.read()
    except FileError as cause:
        raise FileError(f"{cause}: it should hold a device key; {advice}") from cause
    if not key:
        raise FileError(f"{path}: this file is empty, and no device key; {advice}")
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


def _is_free(place: Path) -> bool:
    """Tell whether there is no key in a place: no file, or an empty one that an old version left when it was killed."""
    try:
        status = place.stat()
    except (FileNotFoundError, NotADirectoryError):  # the writer says why there can be none
        return True
    except OSError:  # the reader says why
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == 0


def _make_key(path: Path) -> None:
    """Write a new device key, and announce it."""
    try:
        if not _write_key(path):
            return
    except OSError as cause:
        raise FileError(
            f"{path}: cannot write a device key ({cause.strerror or cause}): name one with --secret-file or "
            f"$SFUMATO_KEY"
        ) from cause
    warnings.warn(
        f"made a device key, {path}: copy it to all devices whose features are to match, and keep it from every "
        f"server; features sealed under a lost key match nothing new",
        NewKeyWarning,
        stacklevel=4,
    )


def _write_key(path: Path) -> bool:
    """Write a new key that its owner alone may read, whole; False if there is one, which stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with file_lock(path):
        if not _is_free(path):  # another process was quicker
            return False
        _write_private(path, new_key())
    return True


def _write_private(path: Path, content: bytes) -> None:
    """Write a file that its owner alone may read, also where one is that was open to others."""
    try:
        path.chmod(0o600)
    except FileNotFoundError:
        pass
    except OSError as cause:
        raise FileError(
            f"{path}: cannot keep others from reading this file ({cause.strerror or cause}): name another place for "
            f"the key"
        ) from cause
    write_file(path, content, private=True)


# --- keys of people: a file for each person and gallery


@dataclass(frozen=True, slots=True)
class PersonKey:
    """The key of a person on this device: a file at ``path``, which its owner alone may read.

    A new template has a new key. It waits in a file beside the first until the gallery holds that template, then takes
    its place: whatever ends a process, the key of the template that the gallery holds is here. ``keeps_old``: the key
    that was in use stays beside it too, for a file that its owner may use elsewhere.
    """

    path: Path
    keeps_old: bool = False

    @property
    def next_path(self) -> Path:
        """The file of keys that are going to be used: one for each attempt that did not end."""
        return self.path.with_name(f"{self.path.name}.next")

    @property
    def old_path(self) -> Path:
        """The file of the key that was in use before."""
        return self.path.with_name(f"{self.path.name}.old")

    @property
    def is_free(self) -> bool:
        """Whether no key is in use here."""
        return _is_free(self.path)

    def read_all(self) -> list[bytes]:
        """Return the keys that are here: the one in use, then those that wait, the newest first, then the old one."""
        use, old = ([] if _is_free(path) else [read_key(path)] for path in (self.path, self.old_path))
        return [*use, *reversed(self._read_next()), *old]

    def _read_next(self) -> list[bytes]:
        content = _content(self.next_path)
        whole = len(content) - len(content) % KEY_BYTES
        return [content[start : start + KEY_BYTES] for start in range(0, whole, KEY_BYTES)]

    def begin(self) -> bytes:
        """Return a new key that waits here until ``finish``; what an attempt before left is never used.

        Raises FileError if it cannot be written, and if the place of the old key is taken.
        """
        is_used = self.keeps_old and not self.is_free and not _is_free(self.old_path)
        if is_used and _content(self.old_path) != _content(self.path):  # equal ones were left by a renewal that stopped
            raise FileError(
                f"{self.old_path}: this key was in use before, and another gallery may need it: renew the person "
                f"there, then delete the file"
            )
        key = new_key()
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with file_lock(self.next_path):
                _write_private(self.next_path, b"".join([*self._read_next(), key]))
        except OSError as cause:
            raise FileError(
                f"{self.next_path}: cannot write the key of a person ({cause.strerror or cause}): name another file "
                f"with --key-file, or another folder with $SFUMATO_FACE_KEYS"
            ) from cause
        return key

    def finish(self, key: bytes) -> None:
        """Let a key that waits take the place of the one in use; nothing if it does not wait here."""
        with file_lock(self.next_path):
            others = self._read_next()
            if key not in others:
                return
            others.remove(key)
            if self.keeps_old and not self.is_free:  # a copy: the file may be a link, which stays where it is
                _write_private(self.old_path, _content(self.path))
            _write_private(self.path, key)
            if others:
                _write_private(self.next_path, b"".join(others))
            else:
                self.next_path.unlink()

    def remove(self) -> None:
        """Delete the keys that are here; raise FileError if one cannot be."""
        for path in (self.path, self.next_path, self.old_path):
            try:
                path.unlink(missing_ok=True)
            except NotADirectoryError:
                continue
            except OSError as cause:
                raise FileError(
                    f"{path}: the person was revoked, and this key could not be deleted ({cause.strerror or cause}): "
                    f"delete it"
                ) from cause


def _content(path: Path) -> bytes:
    """Return the content of a file of keys; nothing if there is none."""
    try:
        return read_bytes(path, LARGEST_KEY)
    except FileError:
        if _is_free(path):
            return b""
        raise


PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.~")
"""Letters of an id that stand in the name of its file. Capitals do not: some file systems take them for small ones."""


def person_key(gallery: bytes, person: str) -> PersonKey:
    """Return the place of a person's key for a gallery, whose id is public: below $SFUMATO_FACE_KEYS or the settings.

    >>> person_key(bytes(2), "Zoë / 7").path.parts[-2:]
    ('0000', '%5Ao%C3%AB%20%2F%207.key')
    """
    folder = os.environ.get("SFUMATO_FACE_KEYS")
    name = "".join(chr(byte) if byte in PLAIN else f"%{byte:02X}" for byte in person.encode())
    if len(name) > LONGEST_NAME or name.startswith("."):
        name = f"%long-{hashlib.blake2b(person.encode(), digest_size=16).hexdigest()}"  # no other name is quoted so
    return PersonKey((Path(folder) if folder else _settings() / "faces") / gallery.hex() / f"{name}.key")


def key_for_gallery(key: bytes, gallery: bytes, person: str = "") -> bytes:
    """Return the key of a gallery, or of a person in it, derived from another key: elsewhere that seals differently.

    >>> key_for_gallery(bytes(32), b"one") == key_for_gallery(bytes(32), b"two")
    False
    """
    hashed = hashlib.blake2b(key, digest_size=32).digest()
    whom = len(gallery).to_bytes(4, "little") + gallery + person.encode()
    return hashlib.blake2b(whom, key=hashed, person=b"sfumato gallery", digest_size=32).digest()


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


def key_for_rows(key: bytes) -> bytes:
    """Return the key of order and tags of rows, derived from a sealing key; a seal does not show it."""
    hashed = hashlib.blake2b(key, digest_size=32).digest()
    return hashlib.blake2b(key=hashed, person=b"sfumato rows", digest_size=32).digest()


def sealing_key(secret: bytes | None, evaluation_seed: int | None, place: str | None = None) -> bytes | None:
    """Return the key for a seal: the secret, for a place its own; one made from an evaluation seed; None for neither.

    Raises InputError for a place without a secret.
    """
    if place is not None:
        if secret is None:
            raise InputError("a place (--place, place=) needs a device key: give one (--secret-file, secret=)")
        return key_for_place(secret, place)
    if secret is not None or evaluation_seed is None:
        return secret
    return SEEDED + b"%d" % evaluation_seed


def is_public(key: bytes) -> bool:
    """Tell whether a key is one of evaluations, which protects nobody."""
    return bytes(key) == EVALUATION_KEY or bytes(key).startswith(SEEDED)


# --- what can be guessed

SHORTEST_BASE_64 = 43
"""Characters of 32 random bytes. Shorter texts of letters and digits cannot be told from words for certain."""
WORDLIKE = 5.5
"""One in 2,000 random texts has more; of 20,000 phrases in CamelCase with digits for letters 5 had less."""
COMMON_LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
DIGITS_AS_LETTERS = str.maketrans("0134578", "oieastb")


def is_weak(secret: bytes) -> bool:
    """Tell whether a secret is too short, too regular, or too much like a text, to be random.

    A text is weak unless it is hexadecimal digits of 16 bytes or more, or the base64 of 32 or more, that look random.
    """
    data = bytes(secret)[:4096]
    text = _as_text(data)
    if text is None:
        return _is_regular(data)
    try:
        return _is_regular(bytes.fromhex(text)) or any(letter.isspace() for letter in text)
    except ValueError:
        pass
    try:
        padded = text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4)
        content = base64.b64decode(padded.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        return True
    return len(text) < SHORTEST_BASE_64 or _is_regular(content) or _is_regular(data) or _wordiness(text) > WORDLIKE


def _as_text(data: bytes) -> str | None:
    """Return a text in UTF-8, or one of mostly plain letters in another encoding; None for other bytes."""
    try:
        text = data.decode("utf-8").strip()
        if text.replace("\n", " ").replace("\r", " ").replace("\t", " ").isprintable():
            return text
    except UnicodeDecodeError:
        pass
    plain = sum(byte in string.printable.encode() for byte in data)
    return data.decode("latin-1") if plain * 8 >= len(data) * 7 else None


def _is_regular(data: bytes) -> bool:
    """Tell whether bytes are too few, repeat themselves, or count up or down; random ones hardly ever do.

    Every second byte is looked at as well: characters of 16 bits have the same one each time.
    """
    if len(data) < SHORTEST_KEY:
        return True
    steps = bytes((after - before) % 256 for before, after in pairwise(data))
    for values in (data, steps, data[::2], data[1::2]):
        if len(set(values)) < min(len(values), 128) / 2:
            return True
    length = 4 if len(data) <= 64 else 8
    pieces = [data[start : start + length] for start in range(len(data) - length + 1)]
    return len(set(pieces)) < len(pieces)


def _wordiness(text: str) -> float:
    """Return by how much letters are common and small rather than random, in standard deviations of random ones."""
    letters = [letter for letter in text if letter.isalpha()]
    ranks = [COMMON_LETTERS.index(one) for one in text.translate(DIGITS_AS_LETTERS).lower() if one.isalpha()]
    if not letters or not ranks:
        return float("inf")
    common = (12.5 - sum(ranks) / len(ranks)) / 7.5 * len(ranks) ** 0.5
    small = (2 * sum(letter.islower() for letter in letters) / len(letters) - 1) * len(letters) ** 0.5
    return float(common + small)
