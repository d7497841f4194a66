# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.cli.options import labels_in, labels_of, read, read_decoys
from sfumato.errors import FileError


def test_labels_come_from_a_table_or_an_array(tmp_path):
    (tmp_path / "labels.csv").write_text("a,woman\nb,man\n")
    assert labels_of(tmp_path / "labels.csv", ("b", "a")) == ["man", "woman"]
    assert labels_of(None, ("a",)) is None
    with pytest.raises(FileError, match="label"):
        labels_of(tmp_path / "labels.csv", ("a", "c"))
    np.savez(tmp_path / "f.npz", embedding=np.eye(2), gender=np.array([1, 0], np.uint8))
    assert labels_in(tmp_path / "f.npz", "gender") == ["1", "0"]
    with pytest.raises(FileError, match="--labels"):
        labels_in(tmp_path / "f.npz", "race")


def test_embeddings_need_no_network_and_decoys_are_never_the_bundled_ones(tmp_path):
    (tmp_path / "f.csv").write_text("alice,1,0\n")
    assert read(tmp_path / "f.csv", None, False, "arcface").embeddings.names == ("alice",)
    assert read_decoys(None) is None
