# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.experiments.faces.protection import (
    ProtectionProtocol,
    evaluate_protection,
    linkability,
    measure_protection,
    protection_table,
)
from sfumato.experiments.faces.releases import collect_albums
from sfumato.types.recipe import Recipe


def test_linkability_from_nothing_to_everything():
    rng = np.random.default_rng(0)
    far = rng.normal(size=20_000)
    assert linkability(rng.normal(size=2000), far) < 0.05
    assert linkability(far[:100] - 100, far) == 1
    between = linkability(rng.normal(-1.5, 1, 2000), far)
    assert 0.3 < between < 0.8
    assert linkability(np.ones(5), np.ones(7)) == 0
    with pytest.raises(InputError, match="both kinds"):
        linkability([], [1.0])


def test_templates_can_be_renewed_but_linked_and_never_revoked(made_faces, strangers):
    albums = collect_albums(made_faces(people=60, photos=3)[0], 3)
    found = measure_protection(albums, Recipe.of("random-2"), strangers, seed=0)
    assert found.people == 60
    assert min(found.linkable, found.linkable_renewed) > 0.7
    assert found.met < 0.3  # where two templates of two photos meet is near both
    assert found.met_accepted > 0.7
    assert found.revoked_accepted > 0.9
    assert abs(found.error_before - found.error_renewed) < 0.05


def test_photos_that_have_nothing_in_common_are_not_linked(made_faces, strangers):
    faces, _ = made_faces(people=60, photos=3, noise=8.0)
    found = measure_protection(collect_albums(faces, 3), Recipe.of("hybrid-2"), strangers, seed=0)
    assert max(found.linkable, found.linkable_renewed) < 0.35
    assert found.error_before > 0.3
    assert found.met_accepted < 0.2


def test_records_and_table(made_faces, strangers, tmp_path):
    faces, _ = made_faces(people=20, photos=3)
    protocol = ProtectionProtocol(recipes=("random-2", "hybrid-2"), seeds=(0, 1))
    records = evaluate_protection(faces, tmp_path, protocol, strangers)
    assert len(records) == 4
    table = protection_table(records)
    assert table.columns[:3] == ("recipe", "seeds", "linkable")
    assert len(table.rows) == 2
    with pytest.raises(InputError, match="at least"):
        ProtectionProtocol(recipes=())
