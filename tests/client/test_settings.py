# SPDX-License-Identifier: Apache-2.0

import pytest

from sfumato.client import Client, read_api_key
from sfumato.client.settings import check_api_key, check_url, refuse_device_key, servers_path
from sfumato.errors import FileError, InputError

KEY = f"sfm_{'a' * 8}_{'B' * 43}_{'0' * 6}"
URL = "http://127.0.0.1:8765"


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8765/", "https://maps.example", "http://localhost:1/maps/", "http://[::1]:80"]
)
def test_addresses_that_are_taken(url):
    assert check_url(url) == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    ["", "maps.example", "ftp://x", "http://", "https://me:pw@maps.example", "https://x?key=1", "http://x:99999",
     "http://127.0.0.1.example", "http://10.0.0.1", "http://maps.example"],
)  # fmt: skip
def test_addresses_that_are_refused(url):
    with pytest.raises(InputError):
        check_url(url)


def test_another_machine_without_tls_must_be_asked_for():
    assert check_url("http://10.0.0.1:80", allow_http=True) == "http://10.0.0.1:80"
    with pytest.raises(InputError, match="--allow-http"):
        Client("http://10.0.0.1:80", KEY)


@pytest.mark.parametrize("key", ["", "hello", KEY + "0", "sfm_x", "\n".join([KEY, "X: y"]), "0f" * 32, None])
def test_what_is_no_api_key_is_refused_and_not_shown(key):
    with pytest.raises(InputError) as caught:
        check_api_key(key)
    assert not key or key not in str(caught.value)


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("SFUMATO_API_KEY", raising=False)
    (tmp_path / "sfumato").mkdir()
    return servers_path()


def test_a_key_comes_from_the_environment_or_a_private_file(settings, monkeypatch):
    with pytest.raises(InputError, match="SFUMATO_API_KEY"):
        read_api_key(URL)
    settings.write_text(f'["{URL}/"]\nkey = "{KEY}"\n')
    settings.chmod(0o644)
    with pytest.raises(FileError, match="chmod 600"):
        read_api_key(URL)
    settings.chmod(0o600)
    assert read_api_key(URL) == KEY
    with pytest.raises(InputError) as caught:
        read_api_key("https://other.example")
    assert KEY not in str(caught.value)
    monkeypatch.setenv("SFUMATO_API_KEY", KEY.replace("B", "C"))
    assert read_api_key(URL) == KEY.replace("B", "C")


@pytest.mark.parametrize("text", [f'key = "{KEY}', f'["{URL}"]\nkey = "{KEY[:20]}"', f'"{URL}" = "{KEY}"', "\xff"])
def test_a_wrong_file_of_keys_shows_no_key(settings, text):
    settings.write_text(text, encoding="latin-1")
    settings.chmod(0o600)
    with pytest.raises((FileError, InputError)) as caught:
        read_api_key(URL)
    assert "sfm_a" not in str(caught.value)


def test_a_device_key_is_recognised(device_key, tmp_path):
    with pytest.raises(InputError):
        refuse_device_key(device_key)
    (tmp_path / "notes.txt").write_text("this is no key")
    refuse_device_key(tmp_path / "notes.txt")


def test_no_text_form_shows_the_key():
    pytest.importorskip("httpx2")
    with Client(URL, KEY) as client:
        place = client.place("kitchen")
        assert KEY not in f"{client!r} {client.transport!r} {client.names!r} {place!r} {vars(client)!r}"
