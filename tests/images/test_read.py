# SPDX-License-Identifier: Apache-2.0
import io
import os
import struct
import threading
import zlib

import cv2
import numpy as np
import pytest

from sfumato.errors import ImageError, InputError
from sfumato.images import read
from sfumato.images.read import AUDIT_MARK, image_format, list_images, read_image, to_grey
from sfumato.types.clear import Image

FORMATS = [".jpg", ".png", ".tiff", ".webp", ".bmp", ".ppm", ".jp2"]


@pytest.fixture
def colours():
    """A smooth picture, 48 wide and 36 high, different in every corner and channel."""
    down, across = np.mgrid[0:36, 0:48]
    return np.stack([across * 5, down * 7, 255 - across * 3 - down * 2], axis=2).astype(np.uint8)


def write(path, pixels):
    """Write red-green-blue or grey pixels in the format of the suffix."""
    code = cv2.imencode(path.suffix, pixels[:, :, ::-1] if pixels.ndim == 3 else pixels)[1]
    path.write_bytes(code.tobytes())
    return path


@pytest.mark.parametrize("suffix", FORMATS)
def test_colours_come_in_the_right_order(tmp_path, colours, suffix):
    image = read_image(write(tmp_path / f"a{suffix}", colours))
    assert image.size == (48, 36)
    assert image.name == f"a{suffix}"
    assert np.abs(image.pixels.astype(int) - colours).mean() < 6  # JPEG and WebP are lossy
    if suffix in (".png", ".tiff", ".bmp", ".ppm"):
        assert (image.pixels == colours).all()


def test_grey_files_stay_grey(tmp_path, colours):
    grey = colours[:, :, 0]
    for suffix in (".png", ".tiff", ".pgm"):
        image = read_image(write(tmp_path / f"a{suffix}", grey))
        assert image.pixels.shape == (36, 48)
        assert (image.pixels == grey).all()
    assert to_grey(image) is image.pixels


def test_to_grey_weighs_the_colours():
    colours = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]], np.uint8)
    assert to_grey(Image(colours)).tolist() == [[76, 150, 29, 255]]


@pytest.mark.parametrize("suffix", [".png", ".tiff"])
def test_sixteen_bits_become_eight(tmp_path, colours, suffix):
    for pixels in (colours, colours[:, :, 1]):
        deep = write(tmp_path / f"deep{suffix}", pixels.astype(np.uint16) * 257)
        assert (read_image(deep).pixels == pixels).all()


def test_transparency_is_dropped(tmp_path, colours):
    clear = np.full(colours.shape[:2], 10, np.uint8)
    code = cv2.imencode(".png", np.dstack([colours[:, :, ::-1], clear]))[1]
    (tmp_path / "a.png").write_bytes(code.tobytes())
    assert (read_image(tmp_path / "a.png").pixels == colours).all()


def test_palettes_become_colours(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    two = np.zeros((4, 6, 3), np.uint8)
    two[:, :3] = (200, 10, 30)
    pillow.fromarray(two).quantize(4).save(tmp_path / "a.png")
    assert (read_image(tmp_path / "a.png").pixels == two).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_pictures_stand_upright(tmp_path, colours, kind, orientation):
    pillow = pytest.importorskip("PIL.Image")
    from PIL.ImageOps import exif_transpose

    exif = pillow.Exif()
    exif[0x112] = orientation
    options = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {}
    stored = io.BytesIO()
    pillow.fromarray(colours).save(stored, kind, exif=exif, **options)
    (tmp_path / "photo.jpg").write_bytes(stored.getvalue())  # the content counts, not the name
    upright = np.asarray(exif_transpose(pillow.open(stored)).convert("RGB")).astype(int)
    found = read_image(tmp_path / "photo.jpg")
    assert found.pixels.shape == upright.shape
    assert np.abs(found.pixels - upright).mean() < 2
    assert (found.size == (36, 48)) == (orientation >= 5)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("kept", [0.5, 0.9, -2])
def test_a_cut_off_file_is_named_and_nothing_is_said_elsewhere(tmp_path, suffix, kept, capfd):
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    path = write(tmp_path / f"cut{suffix}", pixels)
    data = path.read_bytes()
    path.write_bytes(data[: kept if kept < 0 else int(len(data) * kept)])
    with pytest.raises(ImageError, match=rf"cut{suffix}.*(cut off|damaged)"):
        read_image(path)
    assert capfd.readouterr() == ("", "")


def test_a_flipped_bit_in_a_png_is_noticed(tmp_path, colours, capfd):
    path = write(tmp_path / "a.png", colours)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    with pytest.raises(ImageError, match=r"a\.png.*damaged"):
        read_image(path)
    assert capfd.readouterr().err == ""


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def test_a_png_with_odd_extras_is_read_in_silence(tmp_path, colours, capfd):
    data = write(tmp_path / "a.png", colours).read_bytes()
    extra = chunk(b"iCCP", b"bad\0\0" + zlib.compress(b"no profile")) + chunk(b"tEXt", b"Comment\0hello")
    (tmp_path / "b.png").write_bytes(data[:33] + extra + data[33:] + b"trailing bytes")
    assert (read_image(tmp_path / "b.png").pixels == colours).all()
    assert capfd.readouterr().err == ""


def test_a_picture_that_claims_to_be_huge_is_refused(tmp_path, capfd):
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + head + body)
    with pytest.raises(ImageError, match=r"bomb\.png"):
        read_image(tmp_path / "bomb.png")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"this is no picture", "not an image"),
        (b"\xff\xd8\xff", "cut off or damaged"),
        (b"\0\0\0\x1cftypavif" + bytes(50), "AVIF"),
        (b"\0\0\0\x18ftypheic" + bytes(50), "HEIC"),
        (b"RIFF" + bytes(40), "not an image"),
    ],
)
def test_what_is_no_picture_is_named(tmp_path, content, says):
    (tmp_path / "a.jpg").write_bytes(content)
    with pytest.raises(ImageError, match=says) as caught:
        read_image(tmp_path / "a.jpg")
    assert "a.jpg" in str(caught.value)


def test_places_that_are_no_file_are_named(tmp_path):
    (tmp_path / "folder.jpg").mkdir()
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "circle.jpg").symlink_to(tmp_path / "circle.jpg")
    for name, says in (
        ("missing.jpg", "not there"),
        ("folder.jpg", "folder"),
        ("pipe.jpg", "not a regular file"),
        ("circle.jpg", "cannot be read"),
        ("null\0byte.jpg", "cannot be read"),
    ):
        with pytest.raises(ImageError, match=says):
            read_image(tmp_path / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable for root")
def test_a_file_one_may_not_read_is_named(tmp_path, colours):
    path = write(tmp_path / "a.png", colours)
    path.chmod(0)
    with pytest.raises(ImageError, match=r"a\.png"):
        read_image(path)


def test_a_file_too_large_for_an_image_is_not_loaded(tmp_path):
    with open(tmp_path / "a.jpg", "wb") as file:
        file.truncate(2**31)  # sparse
    with pytest.raises(ImageError, match="more than"):
        read_image(tmp_path / "a.jpg")


def test_running_out_of_memory_is_not_the_image_s_fault(tmp_path, colours, monkeypatch):
    def fail(*_):
        problem = cv2.error("Failed to allocate")
        problem.code, problem.err = -4, "no memory"
        raise problem

    monkeypatch.setattr(cv2, "imdecode", fail)
    with pytest.raises(MemoryError):
        read_image(write(tmp_path / "a.png", colours))


def test_the_log_level_is_given_back_even_with_many_threads(tmp_path, colours):
    level = cv2.utils.logging.getLogLevel()
    good, bad = write(tmp_path / "a.tiff", colours), tmp_path / "b.tiff"
    bad.write_bytes(good.read_bytes()[:-40])

    def work():
        for _ in range(20):
            read_image(good)
            with pytest.raises(ImageError):
                read_image(bad)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cv2.utils.logging.getLogLevel() == level
    assert read._quiet_depth == 0


def test_formats_are_known_by_their_first_bytes(colours):
    for suffix, kind in ((".jpg", "JPEG"), (".webp", "WebP"), (".ppm", "PNM"), (".jp2", "JPEG 2000"), (".bmp", "BMP")):
        assert image_format(cv2.imencode(suffix, colours)[1].tobytes()[:32]) == kind
    assert image_format(b"Post scriptum") is None
    assert image_format(b"") is None


# ---------------------------------------------------------------- folders


@pytest.fixture
def folder(tmp_path):
    for name in ("b.JPG", "a.png", "deep/er/c.Tiff", "deep/a.jpeg", ".hidden.jpg", ".cache/d.jpg", "notes.txt", "jpg"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return tmp_path / "photos"


def test_a_folder_is_listed_in_order(folder):
    found = list_images(folder)
    assert [name for name, _ in found] == ["a.png", "b.JPG", "deep/a.jpeg", "deep/er/c.Tiff"]
    assert all(path == folder / name for name, path in found)
    assert list_images(str(folder)) == found


def test_links_are_followed_but_never_in_circles(folder):
    (folder / "deep" / "up").symlink_to(folder, target_is_directory=True)
    (folder / "self").symlink_to(folder / "self")
    other = folder.parent / "elsewhere"
    other.mkdir()
    (other / "z.jpg").write_bytes(b"x")
    (folder / "linked").symlink_to(other, target_is_directory=True)
    (folder / "gone.jpg").symlink_to(folder / "nothing.jpg")
    names = [name for name, _ in list_images(folder)]
    assert names == ["a.png", "b.JPG", "deep/a.jpeg", "deep/er/c.Tiff", "gone.jpg", "linked/z.jpg"]


def test_a_single_file_is_a_list_of_one(folder):
    assert list_images(folder / "b.JPG") == [("b.JPG", folder / "b.JPG")]
    with pytest.raises(ImageError, match="not there"):
        list_images(folder / "none.jpg")


def test_a_folder_without_images_says_what_was_looked_for(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ImageError, match=r"no images.*\.jpg"):
        list_images(tmp_path)


def test_names_that_are_no_utf8_can_still_be_written(tmp_path):
    raw = os.fsencode(tmp_path) + b"/caf\xe9.jpg"
    try:
        open(raw, "wb").close()
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    [(name, path)] = list_images(tmp_path)
    assert name == "caf\\xe9.jpg"
    assert name.encode("utf-8")
    assert os.fsencode(path) == raw


def test_an_image_of_another_type_is_refused_by_the_type():
    with pytest.raises(InputError):
        Image(np.zeros((4, 4), np.float32))


def test_real_photos_are_read(shared_data):
    found = list_images(shared_data / "photos" / "bsds500" / "val")
    assert len(found) == 100
    sizes = {read_image(path).size for _, path in found[:5]}
    assert sizes <= {(481, 321), (321, 481)}


def test_what_an_audit_keeps_is_not_among_the_photos(tmp_path):
    """Sample photos and second views, which an audit keeps, must not be sealed under a key that matters."""
    (tmp_path / "report-data" / "photos").mkdir(parents=True)
    for place in (tmp_path / "mine.png", tmp_path / "report-data" / "photos" / "astronaut.png"):
        assert cv2.imwrite(str(place), np.zeros((4, 4, 3), np.uint8))
    assert len(list_images(tmp_path)) == 2
    (tmp_path / "report-data" / AUDIT_MARK).touch()
    assert [name for name, _ in list_images(tmp_path)] == ["mine.png"]
    assert len(list_images(tmp_path / "report-data")) == 1  # whoever names the folder means it
