# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.geometry.cameras import NAME_EARLIER, is_listable, name_fault, name_list, unlistable_names


def test_names_that_lists_hold():
    assert is_listable("db/é-1.jpg")
    assert unlistable_names(["a b.jpg", "#c.jpg", "d#.jpg", "", "e\tf", " g"]) == [
        "a b.jpg",
        "#c.jpg",
        "",
        "e\tf",
        " g",
    ]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/etc/passwd", "absolute"),
        ("../a.jpg", "leaves"),
        ("a/../b.jpg", "leaves"),
        ("a/..", "leaves"),
        ("a\x1b[2Jb.jpg", "control"),
        ("a\nb.jpg", "control"),
        ("a\x85b.jpg", "control"),
        ("a\ud800.jpg", "control"),
    ],
)
def test_names_that_no_map_holds(name, why):
    assert why in name_fault(name)


@pytest.mark.parametrize("name", ["a b.jpg", "..a/b...jpg", "#1.jpg", "deep/é\u00a0\u200b.jpg", "a"])
def test_names_that_are_only_unusual(name):
    assert name_fault(name) == ""


def test_nobody_is_told_to_rename_and_conceal_again():
    assert "do not rename and conceal them again if they were lifted" in NAME_EARLIER
    assert name_list([f"{i}\n" for i in range(7)]).endswith("'4\\n' and 2 more")
