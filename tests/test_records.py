"""Decoding of records: types, versions, unknown keys, TOML, and sentences instead of tracebacks."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

import pytest

from pour._records import AnyFloat, Option, decode, encode, read, record, schema
from pour.errors import PourError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


@record(kw_only=False)
class Inner:
    value: float
    low: float | None = None


@record(version="schema_version", derived=("summary",))
class Outer:
    name: str
    parts: tuple[Inner, ...]
    options: Mapping[str, Option] = field(default_factory=dict)
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    losses: tuple[AnyFloat, ...] = ()
    schema_version: int = 3

    @property
    def summary(self) -> str:
        return f"{len(self.parts)} parts"

    def __post_init__(self) -> None:
        if self.name == "trouble":
            raise PourError("A name that makes trouble.")
        if self.name == "bad":
            raise ValueError("a bad name")


GOOD = {"name": "a", "parts": [{"value": 1, "low": None}], "counts": {"test": [1, 2]}, "schema_version": 3}


def outer(**changes: object) -> str:
    return json.dumps({**GOOD, **changes})


def error_of(text: str | bytes, path: str = "file.json", kind: type = Outer) -> str:
    with pytest.raises(UsageError) as caught:
        decode(kind, text, path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_record_is_the_same_after_encoding() -> None:
    options = {"rate": 0.1, "steps": 3, "layers": ("a", "b"), "mask": True, "seed": None}
    made = Outer(name="é", parts=(Inner(0.5, 0.25),), options=options, losses=(1.0, math.inf))
    assert decode(Outer, encode(made), "file.json") == made
    assert encode(made, indent=1).startswith('{\n "name"')


def test_derived_keys_are_written_and_ignored() -> None:
    made = decode(Outer, outer(summary=["x"]), "f")
    assert made == decode(Outer, outer(), "f")
    assert json.loads(encode(made))["summary"] == "1 parts"


def test_a_complete_record_has_no_defaults_in_a_file() -> None:
    @record(complete=True, kw_only=False)
    class Whole:
        x: int = 1

    assert decode(Whole, '{"x": 2}', "f") == Whole(2)
    assert "lacks the key x" in error_of("{}", kind=Whole)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": 3}, "has the value 3 for name, which must be a valid string"),
        ({"parts": [{"value": "1"}]}, "'1' for parts.0.value, which must be a valid number"),
        ({"parts": [{"value": math.nan}]}, "nan for parts.0.value, which must be a finite number"),
        ({"parts": [{}]}, "lacks the key parts.0.value"),
        ({"parts": [{"value": 1, "hight": 2}]}, "unknown key parts.0.hight"),
        ({"options": {"x": math.inf}}, "inf for options.x"),
        ({"options": {"x": [1, math.nan]}}, "nan for options.x.1"),
        ({"options": {"x": {"y": 1}}}, "for options.x, which must be a valid string or a valid integer"),
        ({"counts": {"test": [1]}}, "counts.test.1"),
        ({"color": 1}, "unknown key color"),
        ({"\x1b]52;": 1}, "unknown key '\\x1b]52;'"),
        ({"name": "bad"}, "cannot be used: a bad name"),
        ({"name": "trouble"}, "A name that makes trouble."),
        ({"schema_version": 4, "color": 1}, "newer than this pour reads (3); update"),
        ({"schema_version": 2}, "older than this pour reads"),
        ({"schema_version": "3"}, "has no schema_version"),
    ],
)
def test_the_error_names_the_file_and_the_key(changes: dict[str, object], words: str) -> None:
    message = error_of(outer(**changes))
    assert "file.json" in message
    assert words in message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        '{"name": ' * 100_000,
        "[" * 150 + "]" * 150,
        outer()[:-5],
        outer(name="X").replace("X", "\\ud800"),
        "\ud800",
        b"\xff\xfe",
        '{"schema_version": 3, "name": 1' + "0" * 5000 + "}",
        "3",
        "null",
        '{"schema_version": 3, "name": "a", "parts": [{"value": 1e999}]}',
        '{"schema_version": 3, "name": "a", "parts": [{"value": 1' + "0" * 400 + "}]}",
    ],
)
def test_other_content_is_a_sentence(text: str | bytes) -> None:
    assert error_of(text).startswith("file.json ")


def test_toml() -> None:
    text = 'schema_version = 3\nname = "a"\n[[parts]]\nvalue = 1.5\n[options]\nlayers = ["x", "y"]\n'
    assert decode(Outer, text, "file.toml").options == {"layers": ("x", "y")}
    assert "line 2" in error_of(text.replace('"a"', "a b"), "file.toml")
    assert "parts.0.value" in error_of(text.replace("1.5", "nan"), "file.toml")
    assert "write it as a string" in error_of(text + "day = 2020-01-01\n", "file.toml")
    assert "nested" in error_of("x = " + "[" * 10_000 + "]" * 10_000, "file.toml")
    assert "TOML" in error_of(b"\xff", "file.toml")
    assert "TOML" in error_of("x = 1" + "0" * 5000, "file.toml")


def test_reading_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    path.write_text(outer())
    assert read(Outer, path).name == "a"
    monkeypatch.setattr("pour._records._LARGEST_FILE", 10)
    for other, words in ((path, "larger"), (tmp_path, "is a folder"), (tmp_path / "none", "no file")):
        with pytest.raises(UsageError, match=words):
            read(Outer, other)


def test_a_type_made_of_records() -> None:
    assert decode(dict[str, Inner], '{"a": {"value": 2}}', "f") == {"a": Inner(2.0)}
    assert "lacks the key a.value" in error_of('{"a": {}}', kind=dict[str, Inner])
    assert "for a, " in error_of('{"a": "1"}', kind=dict[str, int])


def test_a_number_that_is_not_finite_is_not_encoded() -> None:
    with pytest.raises(PourError, match=r"parts\.0\.value"):
        encode(Outer(name="a", parts=(Inner(math.nan),)))


def test_the_schema_describes_every_field() -> None:
    described = schema(Outer)
    assert set(described["properties"]) == {"name", "parts", "options", "counts", "losses", "schema_version"}
    assert described["additionalProperties"] is False


def test_pydantic_is_imported_only_when_a_file_is_read() -> None:
    code = "import sys, pour, pour._records; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
