# SPDX-License-Identifier: Apache-2.0
"""Which networks attack a recipe, and training those that are missing."""

import pytest

from sfumato.auditing.subjects import settled
from sfumato.auditing.toolbox import Toolbox, Tools
from sfumato.concealment.decoys import load_decoys
from sfumato.concealment.seal import BANDWIDTH
from sfumato.errors import InputError
from sfumato.experiments.frontier import training
from sfumato.experiments.frontier.training import TrainingBudget, concealer_of, missing_for, networks_for, train_missing
from sfumato.features.local import LocalParams, extract
from sfumato.images.samples import sample_paths
from sfumato.training import concealers
from sfumato.types.recipe import Recipe

LOCAL = LocalParams(max_features=300)
LEAST = TrainingBudget(patch_steps=2, refine_steps=1, refine_photos=2, max_photos=4, decoder_steps=2, local=LOCAL)


def test_chains_need_networks_for_the_encoder_alone():
    chain = Recipe.of("ninja-x@0123456789ab+random-2")
    told = [(one.kind, str(one.recipe)) for one in networks_for(chain)]
    alone = "ninja-x@0123456789ab"
    assert told == [(what, name) for name in (str(chain), alone) for what in ("decoder", "inverter")]
    assert not networks_for(Recipe.of("raw"))
    assert len(networks_for(Recipe.of("random-2"))) == 2


def test_networks_are_found_by_what_a_recipe_is(make_painter):
    tools = Tools(
        inverters=[make_painter("ninja:mine@0123456789ab")], decoders={("sift", "ninja@0123456789ab"): ("d", None)}
    )
    assert not missing_for(Recipe.of("ninja-x@0123456789ab"), "sift", tools)
    assert len(missing_for(Recipe.of("ninja-x@0123456789ab"), "rootsift", tools)) == 2
    assert len(missing_for(Recipe.of("ninja-x@ffffffffffff"), "sift", tools)) == 2


def test_draws_differ_from_call_to_call():
    features = extract(next(iter(sample_paths().values())), LOCAL)
    again = concealer_of(Recipe.of("random-2"), Tools())
    first, second = again(features), again(features)
    assert abs(first.code.origin - second.code.origin).max() > 0.01


def test_what_is_missing_is_trained_into_the_folder_of_models(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    recipe, photos = Recipe.of("random-2"), list(sample_paths().values())[:4]
    tools, told = Tools(), []
    wanted = missing_for(recipe, "sift", tools)
    files = train_missing(wanted[:1], photos, tmp_path, tools, LEAST, report=told.append)
    assert told == ["training the decoder of random-2"]
    found = Toolbox(models=tmp_path).open()
    assert [str(one) for one in missing_for(recipe, "sift", found)] == ["inverter of random-2"]
    assert files[0].parent == tmp_path


def test_an_interrupted_training_leaves_no_network(tmp_path, monkeypatch):
    def stop(photos, place, concealer, budget):
        place.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "_train_inverter", stop)
    wanted = networks_for(Recipe.of("sub-hybrid-2"))[1:]
    with pytest.raises(KeyboardInterrupt):
        train_missing(wanted, [], tmp_path, Tools(decoys=load_decoys()), LEAST)
    assert not list(tmp_path.glob("*.safetensors"))


def test_a_seal_is_attacked_by_an_inverter_of_what_is_read_back_under_other_keys(make_painter):
    (wanted,) = missing_for(settled("sealed-64"), "sift", Tools())
    assert str(wanted) == f"inverter of sealed-64:{BANDWIDTH:g}"
    there = Tools(inverters=[make_painter(f"sealed-64:{BANDWIDTH:g}", "cells")])
    assert not missing_for(settled("sealed-64"), "sift", there)
    assert missing_for(settled("sealed-64:0.3"), "sift", there), "another bandwidth has other errors"


def test_a_seal_is_read_back_with_public_descriptors(monkeypatch):
    monkeypatch.setattr(concealers, "LARGEST_PUBLIC", 1500)
    features = extract(next(iter(sample_paths().values())), LOCAL)
    recipe = Recipe.of("sealed-64")
    with pytest.raises(InputError, match="--public"):
        concealer_of(recipe, Tools())
    read = concealer_of(recipe, Tools(public=load_decoys()))(features)
    assert (len(read), read.code.ambient_dim, read.code.dim) == (len(features), 128, 0)
