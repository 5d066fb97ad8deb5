"""Strict YAML: values, line numbers, and rejected documents."""

from __future__ import annotations

import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.support.paths import ROOT
from webhook.adapters import yaml_documents
from webhook.adapters.bounds import MOST_POLICY_BYTES, MOST_YAML_VALUES
from webhook.adapters.yaml_documents import read_documents


def read(text: str | bytes):
    data = text.encode() if isinstance(text, str) else text
    documents, problems = read_documents("f", data)
    return [document.value for document in documents], [str(problem) for problem in problems]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("5", 5), ("-5", -5), ("+5", 5), ("0", 0), ("true", True), ("False", False),
        ("~", None), ("null", None), ("", None), ("'5'", "5"), ("'yes'", "yes"), ('"true"', "true"),
        ("0755", "0755"), ("0o17", "0o17"), ("0x1F", "0x1F"), ("0b1", "0b1"), ("1_000", "1_000"),
        ("1:30", "1:30"), ("2024-01-01", "2024-01-01"), ("8e9", "8e9"), ("0.5", "0.5"),
        (".inf", ".inf"), (".nan", ".nan"), ("None", "None"), ("=", "="), ("9" * 30, "9" * 30),
    ],
)  # fmt: skip
def test_a_scalar_is_what_was_written(written, value):
    values, problems = read(f"a: {written}\n")
    assert problems == []
    assert values == [{"a": value}]
    assert type(values[0]["a"]) is type(value)


@pytest.mark.parametrize("word", ["yes", "No", "ON", "off", "y", "N", "YES"])
def test_words_that_older_yaml_reads_as_booleans_are_rejected(word):
    hint = f"{word} is a boolean in some YAML and text in other; "
    hint += "write true or false, or put it in quotes"
    assert read(f"a:\n- x\n- {word}\n")[1] == [f"f:3: a[1]: {hint}"]
    assert read(f"{word}: 1\n")[1] == [f"f:1: {hint}"]


def test_in_a_field_that_takes_text_alone_such_a_word_is_text():
    documents, problems = read_documents("f", b"a:\n  b: Off\n  c: 1\n", frozenset({"b"}))
    assert [document.value for document in documents] == [{"a": {"b": "Off", "c": 1}}]
    assert problems == []
    assert read_documents("f", b"b: 1\nc: Off\n", frozenset({"b"}))[1] != []
    assert read_documents("f", b"b:\n- Off\n", frozenset({"b"}))[1] != []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", "f:3: a: is set twice; it is already in line 1"),
        ("a:\n\tb: 1\n", "f:2: a tab is where YAML needs spaces; indent with spaces"),
        ("a:\tb: 1\n", "f:1: a tab is where YAML needs spaces; indent with spaces"),
        ("a: !!python/object:os.system x", "is not allowed; remove it"),
        ("\n\na: !!str x", 'f:3: the tag "tag:yaml.org,2002:str" is not allowed; remove it'),
        ("a: ! x", "is not allowed; remove it"),
        ("a: !!binary eA==", "is not allowed; remove it"),
        ("<<: {a: 1}", "f:1: merge keys (<<) are not supported; write the fields out"),
        ("a: &a [*a]", "f:1: the alias *a is inside what it refers to"),
        ("a: *b", "f:1: is not YAML: found undefined alias 'b'"),
        ("? [a]\n: b", "f:1: a key must be text, not a list or a map"),
        ("a: {~: b}", 'f:1: a: the key "~" is not text; put it in quotes'),
        ("true: b", 'f:1: the key "true" is not text; put it in quotes'),
        ("a: b: c", "f:1: is not YAML: mapping values are not allowed here"),
        ("a: 'x", "f:1: is not YAML: while scanning a quoted scalar, found unexpected end"),
        ('a: "\\UFFFFFFFF"', "f:1: is not YAML: a number here is out of range"),
        ("%YAML 1." + "9" * 5000 + "\n---\na", "is not YAML: a number here is out of range"),
        ('a: "\\ud800"', 'f:1: a: "\\ud800" holds a character that no manifest can hold'),
        ('a: "\\0"', "holds a character that no manifest can hold"),
        (b"a: 1\nb: \xff\n", "f:2: byte 0xff is not UTF-8; save the file as UTF-8"),
        ("a: 1\n\nb: \0\n", "f:3: the invisible character U+0000 is not allowed in a policy"),
        ("a: x\u2028y", "f:1: the invisible character U+2028 is not allowed"),
        (
            b" " * (MOST_POLICY_BYTES + 1),
            "f: is larger than 1048576 bytes (1Mi), the limit for a policy",
        ),
        ("[" * 500_000, "f:1: is nested more than 40 levels deep"),
        ("{a: " * 200_000, "f:1: is nested more than 40 levels deep"),
        ("- " * 400_000, "f:1: is nested more than 40 levels deep"),
    ],
)
def test_what_is_wrong_is_rejected_with_its_line(text, problem):
    found = read(text)[1]
    assert len(found) == 1
    assert problem in found[0]


def test_problems_are_found_all_at_once():
    found = read("a: yes\nb: 1\nb: 2\nc: {<<: x}\nd: [no, ok]\n---\ne: off\n")[1]
    assert [problem.split(":")[1] for problem in found] == ["1", "3", "4", "5", "7"]


def test_several_documents_are_read_and_empty_ones_skipped():
    assert read("---\n---\na: 1\n...\n---\n# nothing\n---\nb: 2\n") == ([{"a": 1}, {"b": 2}], [])
    assert read("") == ([], [])
    assert read("\ufeffa: 1") == ([{"a": 1}], [])


def test_documents_before_a_broken_one_are_kept():
    values, problems = read("a: 1\n---\nb: [\n")
    assert values == [{"a": 1}]
    assert len(problems) == 1


def test_a_document_whose_end_is_wrong_is_not_kept():
    values, problems = read("a: 1\n---\ntext\nb: 2\n")
    assert values == [{"a": 1}]
    assert problems == ["f:4: is not YAML: mapping values are not allowed here"]


def test_every_path_knows_its_line():
    text = b"a:\n  b:\n  - 1\n  - c: 2\n\n    d: |\n      x\n"
    (document,), _ = read_documents("f", text)
    assert document.lines == {
        (): 1, ("a",): 1, ("a", "b"): 2, ("a", "b", 0): 3, ("a", "b", 1): 4,
        ("a", "b", 1, "c"): 4, ("a", "b", 1, "d"): 6,
    }  # fmt: skip
    assert document.line(("a", "b", 1, "missing", 7)) == 4


def test_anchors_work():
    assert read("a: &x {b: [1]}\nc: *x\n") == ([{"a": {"b": [1]}, "c": {"b": [1]}}], [])


def test_a_mistake_inside_an_anchor_is_reported_once():
    assert len(read("a: &x [yes]\nb: *x\nc: *x\n")[1]) == 1


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, levels)
    ]
    return "\n".join(lines)


def test_a_bomb_is_rejected_before_it_is_expanded(monkeypatch):
    def never(*_):
        pytest.fail("expanded")

    monkeypatch.setattr(yaml_documents._Builder, "build", never)
    found = read(bomb(levels=9))[1]
    assert found == ["f:5: the file holds more than 20000 values, aliases expanded; split it"]


def test_aliases_count_as_what_they_stand_for():
    def sized(count):
        return f"a: &a [{', '.join('x' * (MOST_YAML_VALUES // 2 - 3))}]\nb: *a\n" + "c: 1\n" * count

    # The map and its keys count once, the list with its items twice. Each further line adds a key
    # and a value.
    assert read(sized(0))[1] == []
    assert "more than 20000 values" in read(sized(2))[1][0]


def test_a_long_chain_of_aliases_is_no_way_around_the_depth():
    chain = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 60))
    assert "nested more than 40 levels deep" in read(chain)[1][0]


def test_many_empty_documents_are_counted_too():
    assert "more than 20000 values" in read("---\n" * 100_000)[1][0]


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@given(plain)
def test_what_a_writer_of_yaml_writes_is_read_back(value):
    text = yaml.safe_dump(value, allow_unicode=False)
    values, problems = read(text)
    assert problems or values == ([] if value is None else [value])
    assert not problems or "no manifest can hold" in str(problems) or "in quotes" in str(problems)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_bytes_at_all_raise_an_error(data):
    read_documents("f", data)


@given(st.text(alphabet="ab:-[]{},&*!|>%@#?'\" \n\t\\x0<~", max_size=60))
def test_no_heap_of_yaml_signs_raises_an_error(text):
    read_documents("f", text.encode())


def test_no_yaml_is_read_but_within_bounds():
    """Only documents within the bounds are passed to ruamel."""
    reads = re.compile(r"yaml\.(?:\w*load|\w*load_all|compose\w*|parse|scan)\(")
    found = {
        path.relative_to(ROOT).as_posix()
        for part in ("certs", "webhook")
        for path in sorted((ROOT / part).rglob("*.py"))
        if reads.search(path.read_text())
    }
    assert found == {"webhook/tools/manifests/tree.py"}
