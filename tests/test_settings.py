"""Settings are read from files and words, and bad ones are refused by name."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from mnagt import settings
from mnagt.errors import InputError
from mnagt.models.registry import MODELS
from mnagt.runs.config import RunConfig, SplitConfig, TrainConfig
from mnagt.settings import (
    LARGEST,
    Fraction,
    Ge,
    Gt,
    Le,
    NonNegativeInt,
    OneOf,
    PositiveInt,
    describe_fields,
    from_dict,
    from_word,
    read_field_docs,
    read_toml,
)

MIXERS = ["mean", "adaptive"]


@dataclass(frozen=True)
class Inner(settings.Settings):
    size: PositiveInt = 3


@dataclass(frozen=True)
class Settings(settings.Settings):
    count: int = 7
    """How many."""
    share: Fraction = 0.5
    """How much
    of it."""
    is_on: bool = True
    kind: Literal["red", "blue"] = "red"
    """Which."""
    name: str | None = None
    hops: NonNegativeInt | None = None
    mixer: Annotated[str, OneOf(MIXERS)] = "mean"
    widths: tuple[int, ...] = (2, 3)
    place: Path = Path(".")
    inner: Inner = Inner()
    more: dict[str, Any] = field(default_factory=dict)


def test_what_is_given_replaces_the_default():
    read = from_dict(Settings, {"count": 11, "inner": {"size": 5}, "widths": [13, 17]}, where="here")
    assert read == Settings(count=11, inner=Inner(5), widths=(13, 17))


def test_nothing_given_is_the_default():
    assert from_dict(Settings, {}, where="here") == Settings()


def test_a_whole_number_will_do_for_a_number():
    share = from_dict(Settings, {"share": 0}, where="here").share
    assert (share, type(share)) == (0.0, float)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"counts": 3}, "here: no setting 'counts'; there are: count, hops, inner"),
        ({"count": "many"}, "here: count: expected a whole number, got 'many'"),
        ({"count": 2.5}, "here: count: expected a whole number, got 2.5"),
        ({"count": True}, "here: count: expected a whole number, got True"),
        ({"count": LARGEST}, f"here: count: {LARGEST} is too large"),
        ({"share": "1e-3"}, "here: share: expected a number, got '1e-3'"),
        ({"share": True}, "here: share: expected a number, got True"),
        ({"is_on": 1}, "here: is_on: expected true or false, got 1"),
        ({"kind": "green"}, "here: kind: expected 'red' or 'blue', got 'green'"),
        ({"name": 3}, "here: name: expected a word, got 3"),
        ({"widths": 3}, "here: widths: expected a list, got 3"),
        ({"widths": [3, "x"]}, "here: widths: expected a whole number, got 'x'"),
        ({"place": 3}, "here: place: expected a path, got 3"),
        ({"inner": 3}, "here: inner: expected a table of settings, got 3"),
        ({"inner": {"size": 0}}, "here: inner: size must be at least 1, got 0"),
        ({"inner": {"width": 0}}, "here: inner: no setting 'width'; there are: size"),
        ({"more": [1]}, "here: more: expected a table of settings, got [1]"),
        ([1], "here: expected a table of settings, got [1]"),
    ],
    ids=str,
)
def test_bad_values_are_refused_by_name(values, said):
    with pytest.raises(InputError) as error:
        from_dict(Settings, values, where="here")
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("hint", "word", "value"),
    [
        (int, "-7", -7),
        (float, "2e-4", 2e-4),
        (bool, "True", True),
        (bool, "false", False),
        (str, "none", "none"),
        (str | None, "none", None),
        (str | None, "some", "some"),
        (int | None, "5", 5),
        (Path, "a/b", Path("a/b")),
        (tuple[int, ...], "2,3,5", (2, 3, 5)),
        (Literal["red", "blue"], "blue", "blue"),
    ],
    ids=str,
)
def test_words_become_values(hint, word, value):
    read = from_word(hint, word, "--it")
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("hint", "word", "said"),
    [
        (int, "x", "--it: expected a whole number, got 'x'"),
        (int, "2.5", "--it: expected a whole number, got '2.5'"),
        (int, str(2**70), f"--it: {2**70} is too large; whole numbers stay below {LARGEST}"),
        (float, "", "--it: expected a number, got ''"),
        (bool, "yes", "--it: expected true or false, got 'yes'"),
        (tuple[int, ...], "2,,3", "--it: expected a whole number, got ''"),
        (Literal["red", "blue"], "green", "--it: expected 'red' or 'blue', got 'green'"),
    ],
    ids=str,
)
def test_bad_words_are_refused(hint, word, said):
    with pytest.raises(InputError) as error:
        from_word(hint, word, "--it")
    assert str(error.value) == said


def test_bounds_refuse_what_is_not_a_number():
    with pytest.raises(InputError, match="share must be at least 0, got nan"):
        Settings(share=float("nan"))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"share": 1.0}, "share must be below 1, got 1.0"),
        ({"share": -0.1}, "share must be at least 0, got -0.1"),
        ({"hops": -1}, "hops must be at least 0, got -1"),
        ({"kind": "green"}, "kind must be one of blue, red, got 'green'"),
    ],
    ids=str,
)
def test_values_outside_of_the_annotation_are_refused(values, said):
    with pytest.raises(InputError) as error:
        Settings(**values)
    assert str(error.value) == said


def test_what_may_be_none_has_no_bounds_then():
    assert Settings(hops=None).hops is None


def test_bounds_accept_what_they_say():
    assert [Ge(2).accepts(value) for value in (1, 2, 3)] == [False, True, True]
    assert [Gt(2).accepts(value) for value in (1, 2, 3)] == [False, False, True]
    assert [Le(2).accepts(value) for value in (1, 2, 3)] == [True, True, False]


def test_inherited_fields_keep_their_text_and_a_new_annotation_counts():
    @dataclass(frozen=True)
    class Wider(Settings):
        count: PositiveInt = 11

    assert read_field_docs(Wider)["count"] == "How many."
    assert describe_fields(Wider)["count"].default == 11
    with pytest.raises(InputError, match="count must be at least 1"):
        Wider(count=0)


def test_choices_are_listed():
    with pytest.raises(InputError, match="mixer must be one of adaptive, mean, got 'sum'"):
        Settings(mixer="sum")


def test_a_choice_added_to_a_table_counts():
    MIXERS.append("sum")
    try:
        assert Settings(mixer="sum").mixer == "sum"
    finally:
        MIXERS.remove("sum")


def test_toml_is_read(tmp_path):
    path = tmp_path / "it.toml"
    path.write_text('model = "gin"\n[train]\nlr = 1e-3\n')
    assert read_toml(path) == {"model": "gin", "train": {"lr": 1e-3}}


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"a = 1\nb = \n", "Invalid value .at line 2"), (b"a = 1\na = 2\n", "at line 2"), (b"\xff\xfe", "can't decode")],
)
def test_malformed_toml_is_refused_with_file_and_line(tmp_path, content, said):
    (tmp_path / "it.toml").write_bytes(content)
    with pytest.raises(InputError, match=rf"it\.toml: not TOML: .*{said}"):
        read_toml(tmp_path / "it.toml")


def test_a_missing_or_unreadable_toml_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=r"gone\.toml: no such file"):
        read_toml(tmp_path / "gone.toml")
    with pytest.raises(InputError, match="cannot be read"):
        read_toml(tmp_path)


def test_fields_are_described_by_the_string_under_them():
    assert read_field_docs(Settings) == {"count": "How many.", "share": "How much of it.", "kind": "Which."}


@pytest.mark.parametrize("config", [TrainConfig, SplitConfig, *(entry.config for entry in MODELS.values())])
def test_every_setting_that_a_user_can_name_is_explained(config):
    assert read_field_docs(config).keys() == config.__dataclass_fields__.keys()


def test_a_run_can_be_written_and_read_again():
    from dataclasses import asdict

    config = RunConfig("MUTAG", "gin", {"dim": 16}, TrainConfig(lr=0.1), SplitConfig("stratified", fold=3))
    assert from_dict(RunConfig, asdict(config), where="here") == config
