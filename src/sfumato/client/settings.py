# SPDX-License-Identifier: Apache-2.0
"""Settings of a client: the address of its server, and where API keys are; never in an option, where others see them.

A key is that of the server's administrator. It opens the server, and has nothing to do with a device key, which makes
codes and never leaves a device.
"""

import ipaddress
import os
import re
import stat
import tomllib
import warnings
from pathlib import Path
from urllib.parse import urlsplit

from sfumato.concealment.keys import read_key
from sfumato.errors import FileError, InputError, SfumatoError
from sfumato.files.atomic import open_file

API_KEY = re.compile(r"sfm_[a-z2-7]{8}_[A-Za-z0-9_-]{43}_[0-9a-f]{6}\Z")
URL_VARIABLE, KEY_VARIABLE = "SFUMATO_SERVER", "SFUMATO_API_KEY"
LARGEST_SETTINGS = 2**20


def servers_path() -> Path:
    """Return the path of the file of API keys: ``sfumato/servers.toml`` below the folder of settings."""
    settings = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(settings) / "sfumato" / "servers.toml"


def check_url(url: str, *, allow_http: bool = False) -> str:
    """Return the address of a server without a slash at its end.

    Raises InputError for what is no address of a server, and for one without TLS on another machine: keys would travel
    in the clear. ``allow_http`` takes that too.

    >>> check_url("http://127.0.0.1:8765/")
    'http://127.0.0.1:8765'
    """
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port  # a port that is none raises
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username is not None:
        raise InputError(f"no server is at {url!r:.80}: give an address such as https://maps.example:8765")
    if parts.scheme == "http" and not is_loopback(host) and not allow_http:
        raise InputError(
            f"{url!r:.80} is another machine and has no TLS, so that the API key would travel in the clear: give an "
            f"https:// address, or --allow-http (allow_http=True) within a network that you trust"
        )
    return url.strip().rstrip("/")


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_api_key(key: str) -> str:
    """Return an API key; raises InputError, which does not show it, for what is none."""
    if not isinstance(key, str) or not API_KEY.match(key.strip()):
        raise InputError(
            "this is no API key: one begins with sfm_ and is printed by the server when it is made (sfumato server key "
            "create); a device key is something else, and no server gets it"
        )
    return key.strip()


def read_api_key(url: str) -> str:
    """Return the API key for a server: ``$SFUMATO_API_KEY``, or the one in ``sfumato/servers.toml``.

    The file has a table for each server, ``["https://maps.example"]``, with a line ``key = "sfm_..."``.

    Raises InputError if there is none, FileError for a file that others may read.
    """
    key = os.environ.get(KEY_VARIABLE)
    if key:
        return check_api_key(key)
    path = servers_path()
    if not path.exists():
        raise InputError(
            f"no API key for {url}: set ${KEY_VARIABLE}, or make the file {path} (chmod 600) with the lines "
            f'["{url}"] and key = "sfm_..."'
        )
    with open_file(path, LARGEST_SETTINGS) as file:
        mode, text = stat.S_IMODE(os.fstat(file.fileno()).st_mode), file.read()
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise FileError(f"{path}: others may read the API keys in this file (mode {mode:04o}): chmod 600 {path}")
    try:
        tables = {name.rstrip("/"): table for name, table in tomllib.loads(text.decode("utf-8")).items()}
    except ValueError as cause:
        line = re.search(r"line (\d+)", str(cause))  # the rest may quote a key
        raise FileError(f"{path}: this is no TOML{f', see line {line[1]}' if line else ''}") from cause
    table = tables.get(url)
    if not isinstance(table, dict) or "key" not in table:
        raise InputError(f'{path} has no key for {url}: add the lines ["{url}"] and key = "sfm_..."')
    return check_api_key(table["key"])


def refuse_device_key(path: str | os.PathLike[str]) -> None:
    """Raise InputError for a file that could be a device key: it never leaves the device."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read_key(path)
    except SfumatoError:
        return
    raise InputError(f"{path} could be a device key, which never leaves the device: give photos or an archive (.sfm)")
