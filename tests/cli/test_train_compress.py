# SPDX-License-Identifier: Apache-2.0
"""sfumato train compress: components of photos, used by a recipe, inspected; mistakes end in one line."""

import json

from sfumato.concealment.encoder import load_encoder
from sfumato.concealment.resolve import resolve


def test_components_of_photos_serve_a_recipe(photos, tmp_path, run_sfumato):
    output = tmp_path / "mine.safetensors"
    told = run_sfumato("train", "compress", photos, "-o", output, "--json", "--workers", "1", code=0)
    facts = json.loads(told.stdout)
    assert facts["checksum"] == load_encoder(output).checksum
    assert facts["data"] == [photos.name]
    assert resolve(f"compress-16:{output}+random-2").encoders[0].output_dim == 16
    shown = run_sfumato("inspect", output, code=0)
    assert "compress-D:mine.safetensors, D from 1 to 127" in shown.stdout
    again = run_sfumato("train", "compress", photos, "-o", output, code=1)
    assert "--overwrite" in again.stderr


def test_too_little_is_told(tmp_path, run_sfumato):
    (tmp_path / "photos").mkdir()
    run_sfumato("train", "compress", tmp_path / "photos", "-o", tmp_path / "x.safetensors", code=1)
    assert not (tmp_path / "x.safetensors").exists()
    assert "compress-48:FILE" in run_sfumato("train", "compress", "--help", code=0).stdout
