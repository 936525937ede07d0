"""Methods are found by folder, at home and on LONGDECODE_METHOD_PATH, and refused with a reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from longdecode.engine.errors import ConfigError
from longdecode.methods.card import Card, read_card
from longdecode.methods.registry import METHOD_PATH_VARIABLE, get_method, load_card, method_names

MODULE = """
from longdecode.methods.registry import get_method

class Extra(get_method("full")):
    name = "NAME"

METHOD = Extra
"""


@pytest.fixture
def extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of further methods, with one called ``extra``."""
    monkeypatch.setenv(METHOD_PATH_VARIABLE, str(tmp_path))
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "method.py").write_text(MODULE.replace("NAME", "extra"))
    (tmp_path / "extra" / "card.yaml").write_text(yaml.safe_dump(card_values() | {"name": "extra"}))
    return tmp_path


def card_values() -> dict:
    return load_card("full").model_dump(mode="json")


def test_names_alone_import_no_method() -> None:
    code = (
        "import sys; from longdecode.methods.registry import method_names; method_names();"
        "sys.exit(any('quest' in module for module in sys.modules))"
    )
    path = os.pathsep.join(sys.path)
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}, check=False).returncode == 0


@pytest.mark.parametrize(("given", "nearest"), [("qest", "quest"), ("Full", "full"), ("streaming_llm", "streaming")])
def test_an_unknown_name_gets_the_nearest(given: str, nearest: str) -> None:
    for look_up in (get_method, load_card):
        with pytest.raises(ConfigError, match=f"unknown method '{given}'; nearest valid name: '{nearest}'"):
            look_up(given)


def test_a_further_folder_is_searched(extra: Path) -> None:
    assert "extra" in method_names() and get_method("extra") is get_method("extra")
    assert get_method("extra").name == "extra" and load_card("extra").name == "extra"


def test_a_missing_further_folder_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(METHOD_PATH_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="absent, which is not a folder"):
        method_names()


@pytest.mark.parametrize(
    ("entries", "held"),
    [
        ([""], "holds extra"),
        (["extra"], "itself a method: name the folder above it"),
        (["bare", ""], "holds no <name>/method.py"),
    ],
)
def test_an_unknown_name_is_told(extra: Path, monkeypatch: pytest.MonkeyPatch, entries: list[str], held: str) -> None:
    """With what each further folder holds."""
    (extra / "bare").mkdir()
    monkeypatch.setenv(METHOD_PATH_VARIABLE, os.pathsep.join(str(extra / entry) for entry in entries))
    with pytest.raises(ConfigError) as caught:
        get_method("extras")
    said = str(caught.value)
    assert f"; {METHOD_PATH_VARIABLE} names {extra / entries[0]} ({held})" in said
    assert ("nearest valid name: 'extra'" in said) == (entries == [""]), "a guess, where a folder holds nothing"
    assert said.endswith(f"{extra} (holds extra)") == ("" in entries)


def test_a_name_defined_twice_is_refused(extra: Path) -> None:
    (extra / "extra").rename(extra / "quest")
    with pytest.raises(ConfigError, match="'quest' is defined twice"):
        method_names()


def test_a_method_of_another_name_is_refused(extra: Path) -> None:
    (extra / "extra").rename(extra / "faulty")
    with pytest.raises(ConfigError, match="named 'extra'"):
        get_method("faulty")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "red"}, "colour: Extra inputs"), ({"kind": "dense"}, "kind: "),
        ({"name": "other"}, "named 'other', its folder 'extra'"),
        ({"variants": {"speed=1": "fast"}}, "variant 'speed=1'"), ({"limits": {}}, "limits.min_context_tokens"),
        ({"slack": {"tokens": -1, "why": ""}}, "slack.tokens"),
        ({"slack": {"tokens": 0, "why": "", "per_query_head": ["a=1"]}}, "no variant of this card"),
    ],
)  # fmt: skip
def test_a_card_that_does_not_fit_is_refused(extra: Path, change: dict, message: str) -> None:
    path = extra / "extra" / "card.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change))
    with pytest.raises(ConfigError, match=message) as caught:
        load_card("extra")
    assert str(path) in str(caught.value)


def test_a_missing_or_broken_card_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no card"):
        read_card(tmp_path / "card.yaml")
    (tmp_path / "card.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="not YAML"):
        read_card(tmp_path / "card.yaml")


def test_a_variant_is_a_typed_override() -> None:
    knob = {"name": "size", "default": 1, "meaning": "a size"}
    card = Card.model_validate(card_values() | {"knobs": [knob], "variants": {"size=3": "three"}})
    assert card.variant_params("size=3") == {"size": 3}
