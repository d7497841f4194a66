# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InputError, RecipeError
from sfumato.types.recipe import DEFAULT_RECIPE, KINDS, LARGEST_DIM, Link, Recipe

dims = st.integers(1, LARGEST_DIM)
with_decoys = [kind for kind, what in KINDS.items() if what.decoys != "none" and kind != "subset"]
liftings = (
    st.builds(Link, st.sampled_from(["random", *with_decoys]), dims, forced=st.booleans())
    | st.builds(Link, st.sampled_from(with_decoys), dims, forced=st.booleans(), variant=st.just("-generated"))
    | st.builds(
        Link,
        st.just("subset"),
        st.integers(2, LARGEST_DIM),
        variant=st.from_regex(r":eps=[0-9]{0,2}[1-9](\.[0-9]{1,4})?", fullmatch=True),
    )
)
variants = st.from_regex(r"[-:][A-Za-z0-9_./-]{1,20}", fullmatch=True)
files = st.from_regex(r"(:[A-Za-z0-9_./-]{1,20})?(@[0-9a-f]{12})?", fullmatch=True)
encoders = st.builds(Link, st.just("compress"), dims, variant=files) | st.builds(
    Link, st.just("ninja"), variant=variants
)
chains = (
    st.just((Link("raw"),))
    | st.lists(encoders, min_size=1, max_size=3).map(tuple)
    | st.tuples(st.lists(encoders, max_size=3), liftings).map(lambda pair: (*pair[0], pair[1]))
)
recipes = st.builds(
    Recipe,
    links=chains,
    evaluation_seed=st.none() | st.integers(0, 2**64 - 1),
    keyed=st.booleans(),
    decoys=st.none() | st.from_regex(r"[0-9a-f]{16}", fullmatch=True),
)


@given(chains)
def test_short_form_round_trip(links: tuple[Link, ...]):
    recipe = Recipe(links=links)
    assert Recipe.of(str(recipe)) == recipe
    assert hash(Recipe.of(str(recipe))) == hash(recipe)
    assert Recipe.of(recipe) is recipe


@given(recipes)
def test_json_round_trip_keeps_every_parameter(recipe: Recipe):
    back = Recipe.from_json(recipe.to_json())
    assert back == recipe
    assert (back.links, back.evaluation_seed, back.keyed, back.decoys) == (
        recipe.links, recipe.evaluation_seed, recipe.keyed, recipe.decoys
    )  # fmt: skip
    assert back.to_json() == recipe.to_json()


@pytest.mark.parametrize(
    ("text", "dim", "decoys", "encoder", "clear"),
    [
        ("raw", 0, 0, False, True),
        ("random-2", 2, 0, False, False),
        ("adversarial-3", 3, 3, False, False),
        ("hybrid-2", 2, 1, False, False),
        ("hybrid-3", 3, 2, False, False),
        ("sub-adversarial-4", 4, 4, False, False),
        ("sub-hybrid-4", 4, 2, False, False),
        ("sub-hybrid-1-forced", 1, 1, False, False),
        ("hybrid-labels-5", 5, 3, False, False),
        ("compress-48", 0, 0, True, False),
        ("ninja-sift-1.0", 0, 0, True, False),
        ("ninja:weights/mine.safetensors", 0, 0, True, False),
        ("compress-48+sub-hybrid-4", 4, 2, True, False),
        ("ninja-sift-1.0+random-2", 2, 0, True, False),
    ],
)
def test_what_recipes_mean(text: str, dim: int, decoys: int, encoder: bool, clear: bool):
    recipe = Recipe.of(text)
    assert str(recipe) == text
    assert recipe.dim == dim
    assert (recipe.lifting.decoy_count if recipe.lifting else 0) == decoys
    assert recipe.has_encoder is encoder
    assert recipe.is_clear is clear
    assert recipe.kind == recipe.links[-1].kind


def test_kind_and_dim_make_one_link():
    recipe = Recipe(kind="sub-hybrid", dim=2)
    assert recipe == Recipe("sub-hybrid", 2) == Recipe.of(" sub-hybrid-2 ")
    assert recipe.links == (Link("sub-hybrid", 2),)
    assert Recipe("random", 1, forced=True) == Recipe.of("random-1-forced")
    assert Recipe("random", 1) != Recipe("random", 1, forced=True)


def test_what_describes_a_result_is_not_compared_but_a_seed_is():
    assert Recipe("random", 2, keyed=True, decoys="ab") == Recipe("random", 2)
    assert Recipe("random", 2, evaluation_seed=1) != Recipe("random", 2)


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("sub-hybird-2", "sub-hybrid-2"),
        ("subhybrid-4", "sub-hybrid-4"),
        ("Random-2", "random-2"),
        ("sub_hybrid-2", "sub-hybrid-2"),
        ("hybrid-label-8", "hybrid-labels-8"),
        ("adverserial-3", "adversarial-3"),
        ("compres-48+random-2", "compress-48"),
        ("rnadom", "random-2"),
        ("rav", "raw"),
        ("random", "random-2"),
        ("sealed", "sealed-512"),
        ("seald", "sealed-512"),
        ("Sealed-512", "sealed-512"),
        ("Sealed-256:0.4", "sealed-256"),
        ("compress", "compress-48"),
        ("subset", "subset-4:eps=10"),
    ],
)
def test_a_misspelt_recipe_suggests_the_nearest(text: str, suggestion: str):
    with pytest.raises(RecipeError, match=suggestion):
        Recipe.of(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "+",
        "random-2+",
        "+random-2",
        "random-0",
        "random--2",
        "random-2.0",
        "random-٢",
        "random-99999",
        "2",
        "-2",
        "raw+random-2",
        "random-2+raw",
        "random-2+random-2",
        "random-2+compress-48",
        "compress-48-forced",
        "raw-2",
        "raw-forced",
        "ninja",
        "ninja-",
        "ninja-2+",
        "random-2-Forced",
        "random-2\n+",
        "ninja-a\nb",
        "ninja-\x1b[2J",
        "zzz",
        "random-" + "9" * 100,
        "x" * 10_000,
    ],
)
def test_impossible_recipes_are_refused_in_few_words(text: str):
    with pytest.raises(RecipeError) as caught:
        Recipe.of(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("recipe", [None, 2, b"random-2", ["random-2"]])
def test_only_recipes_and_texts_are_recipes(recipe):
    with pytest.raises(RecipeError, match="short"):
        Recipe.of(recipe)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"kind": "random"},
        {"kind": "random", "dim": 0},
        {"kind": "random", "dim": True},
        {"kind": "random", "dim": 2.0},
        {"kind": "random", "dim": "2"},
        {"kind": "raw", "dim": 2},
        {"kind": "raw", "forced": True},
        {"kind": "ninja"},
        {"kind": "compress", "dim": 48, "forced": True},
        {"kind": "nothing", "dim": 2},
        {"kind": ["random"], "dim": 2},
        {"links": ()},
        {"links": (Link("random", 2),), "kind": "random"},
        {"links": (Link("random", 2),), "dim": 3},
        {"links": (Link("random", 2),), "forced": True},
        {"kind": "random", "dim": 2, "evaluation_seed": -1},
        {"kind": "random", "dim": 2, "evaluation_seed": 2**64},
        {"kind": "random", "dim": 2, "evaluation_seed": True},
        {"kind": "random", "dim": 2, "evaluation_seed": 1.0},
        {"kind": "random", "dim": 2, "keyed": 1},
        {"kind": "random", "dim": 2, "decoys": 5},
        {"kind": "random", "dim": 2, "decoys": "x" * 1000},
    ],
)
def test_impossible_values_are_refused(arguments: dict):
    with pytest.raises(RecipeError):
        Recipe(**arguments)


def test_links_must_be_links():
    with pytest.raises(InputError, match="Link values"):
        Recipe(links=("random-2",))  # type: ignore[arg-type]


@given(st.text(max_size=30) | st.text("random-2+submhyb:1fc ", max_size=30))
def test_any_text_gives_a_recipe_or_a_recipe_error(text: str):
    try:
        recipe = Recipe.of(text)
    except RecipeError:
        return
    assert Recipe.of(str(recipe)) == recipe


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["random", "raw", "ninja", "-a", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "dim"]), inner, max_size=2),
    max_leaves=5,
)
link_data = st.fixed_dictionaries({"kind": values, "dim": values, "forced": values, "variant": values})
recipe_data = st.fixed_dictionaries(
    {
        "links": st.lists(link_data, max_size=3) | values,
        "evaluation_seed": values,
        "keyed": values,
        "decoys": values,
    }
)


@given(recipe_data.map(json.dumps) | values.map(json.dumps) | st.text(max_size=40))
def test_any_json_gives_a_recipe_or_a_recipe_error(text: str):
    try:
        recipe = Recipe.from_json(text)
    except RecipeError:
        return
    assert Recipe.from_json(recipe.to_json()) == recipe


@pytest.mark.parametrize("name", ["links", "evaluation_seed", "keyed", "decoys", "unknown"])
def test_json_with_a_key_too_few_or_too_many_is_refused(name: str):
    data = json.loads(Recipe("random", 2).to_json())
    data = {**data, "unknown": 1} if name == "unknown" else {k: v for k, v in data.items() if k != name}
    with pytest.raises(RecipeError, match="keys"):
        Recipe.from_json(json.dumps(data))


def test_text_form_says_what_matters():
    assert repr(Recipe("random", 2)) == "Recipe('random-2')"
    assert repr(Recipe("random", 2, evaluation_seed=7, keyed=True)) == "Recipe('random-2', evaluation_seed=7, keyed)"


def test_numpy_integers_and_the_short_form_make_recipes():
    assert Recipe("random", np.int64(2)) == Recipe("random-2") == Recipe.of("random-2")
    assert type(Recipe("random", np.int64(2)).dim) is int
    assert str(Recipe("compress-48+sub-hybrid-4")) == "compress-48+sub-hybrid-4"
    with pytest.raises(RecipeError, match="'sub-hybrid-2'"):
        Recipe("sub-hybird-2")


def test_encoders_that_were_read_have_an_identity_beside_their_name():
    one, two = (Recipe.of(f"ninja{name}@0123456789ab+random-2") for name in (":mine", "-sift-2.5"))
    assert one != two
    assert one.space == two.space == "ninja@0123456789ab"
    assert one.identity == two.identity == "ninja@0123456789ab+random-2"
    assert one.encoders == (Link("ninja", variant=":mine@0123456789ab"),)
    assert one.encoders[0].checksum == "0123456789ab"
    assert Recipe.from_json(one.to_json()) == one


@pytest.mark.parametrize("text", ["ninja-sift-2.5", "ninja:a@b.safetensors", "ninja:x@0123456789AB", "ninja:x@0123"])
def test_encoders_that_are_only_named_are_their_names(text):
    recipe = Recipe.of(text)
    assert recipe.encoders[0].checksum == ""
    assert recipe.space == recipe.identity == text


def test_liftings_do_not_change_the_space():
    assert Recipe.of("sub-hybrid-2").space == Recipe.of("raw").space == "clear"
    assert Recipe.of("sub-hybrid-2").identity == "sub-hybrid-2"
    assert Recipe.of("compress-48+random-2").space == "compress-48"


def test_default_stands_for_the_recipe_we_defend() -> None:
    assert Recipe.of("default") == Recipe.of(DEFAULT_RECIPE)
    assert str(Recipe.of(" default ")) == DEFAULT_RECIPE
    with pytest.raises(RecipeError, match="'default-2'"):
        Recipe.of("default-2")


def test_the_bandwidth_of_a_seal_is_a_number():
    assert str(Recipe.of("sealed-64:0.400@0123456789ab")) == "sealed-64:0.4@0123456789ab"
    assert Recipe.of("sealed-64:1.0") == Recipe.of("sealed-64:1")


@pytest.mark.parametrize("text", ["sealed-512+chaff-2", "default+chaff-2", "chaff-2", "random-2+chaff"])
def test_chaff_is_no_longer_made(text: str):
    with pytest.raises(RecipeError, match="chaff"):
        Recipe.of(text)


def test_the_text_of_earlier_versions_is_read_where_it_has_no_chaff():
    text = Recipe.of("sealed-512@0123456789ab").to_json()
    assert Recipe.from_json(text.replace("{", '{"chaff":0,', 1)) == Recipe.of("sealed-512@0123456789ab")
    with pytest.raises(RecipeError, match="chaff"):
        Recipe.from_json(text.replace("{", '{"chaff":2,', 1))
