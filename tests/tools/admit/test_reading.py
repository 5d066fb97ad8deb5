from __future__ import annotations

import json

import pytest

from tests.support.call_count import calls
from tests.tools.admit.runs import POD, run
from webhook.tools.manifests.bounds import DEEPEST_MANIFEST, MAX_ALIASED
from webhook.tools.manifests.reading import (
    ExactFloat,
    ManifestError,
    needs_quotes,
    read_yaml,
    resolve,
)

# From the tests of sigs.k8s.io/yaml and resolve.go of its goyaml.v2.
SCALARS = {
    "yes": True, "Yes": True, "YES": True, "y": True, "Y": True, "on": True, "true": True,
    "no": False, "n": False, "N": False, "off": False, "OFF": False, "False": False,
    "": None, "~": None, "null": None, "NULL": None,
    "0777": 511, "0o17": 15, "0x1F": 31, "-0b11": -3, "1_000": 1000, "+7": 7, "-0": 0,
    "8589934592": 2**33, "18446744073709551616": 2**64,
    "yEs": "yEs", "nULL": "nULL", "1:30": "1:30", "2001-01-01": "2001-01-01", "0x": "0x",
    "8Gi": "8Gi", "1e400": "1e400", "1.2.3": "1.2.3", "-": "-", ".": ".", "1e": "1e", "0o8": "0o8",
    "._5": "._5", "=": "=", "é": "é",
}  # fmt: skip
FLOATS = {"8e9": 8e9, "1.5": 1.5, "08": 8.0, ".5": 0.5, "1.": 1.0, "1_0.5": 10.5, "-1E+3": -1000.0}


@pytest.mark.parametrize("text", SCALARS)
def test_a_plain_scalar_means_what_it_means_to_kubectl(text):
    value = resolve(text)
    assert (type(value), value) == (type(SCALARS[text]), SCALARS[text])


@pytest.mark.parametrize("text", FLOATS)
def test_a_float_remembers_its_digits(text):
    value = resolve(text)
    assert isinstance(value, ExactFloat)
    assert value == FLOATS[text]
    assert value.text == text.replace("_", "")


@pytest.mark.parametrize("text", [*SCALARS, *FLOATS, ".nan", ".inf", "-.INF"])
def test_what_is_no_string_or_could_be_one_elsewhere_gets_quotes(text):
    plain = {"yEs", "nULL", "0x", "8Gi", "1e400", "1e", "0o8", "é"}
    assert needs_quotes(text) is (text not in plain)


@pytest.mark.parametrize("text", ["a: .nan", "a: -.inf", "a: b\nc: {d: .NaN}"])
def test_a_number_that_json_does_not_have_is_rejected(text):
    with pytest.raises(ManifestError, match="JSON does not have"):
        read_yaml(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('a: "yes"\nb: \'8\'\n"on": |-\n x', {"a": "yes", "b": "8", "on": "x"}),
        ("a: !!str yes\nb: !!int '7'\nc: !local 5", {"a": "yes", "b": 7, "c": "5"}),
        ("a: ! 6\nb: !!float 0x10\nc: ! '7'", {"a": 6, "b": 16.0, "c": 7}),
        ("yes: 1\n1: 2\n1.5: 3", {"true": 1, "1": 2, "1.5": 3}),
        ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
        ("a: &x {b: 1, c: 2}\nd: {<<: *x, b: 3}\n", {"a": {"b": 1, "c": 2}, "d": {"b": 3, "c": 2}}),
        ("v: &v {b: 1}\nw: &w {b: 2}\nz: {<<: [*v, *w]}",
         {"v": {"b": 1}, "w": {"b": 2}, "z": {"b": 1}}),
        ('"<<": 1', {"<<": 1}),
        ("", None), ("# a", None), ("a: b\n...\n", {"a": "b"}),
    ],
)  # fmt: skip
def test_yaml_reads_as_kubectl_reads_it(text, value):
    assert read_yaml(text)[0] == value


def test_amounts_are_decided_by_their_digits():
    for amount, shown in {
        "8e9": "7630Mi",
        "8589934592.0": "8Gi",
        "9007199254740993.0": "8589934593Mi",  # 2^53 + 1: a float would lose the 1
        "0x200000000": "8Gi",
        "1.5e9": "1431Mi",
    }.items():
        manifest = POD.replace("    vramwarden.io/gpu-memory: 8Gi", "    a: b")
        text = f"{manifest}    resources: {{limits: {{vramwarden.io/vram: {amount}}}}}\n"
        result = run(text)
        assert f"({shown} on 1 GPU)" in result.err, amount
    document = {"kind": "Pod", "spec": {"containers": [{"name": "a", "resources": "here"}]}}
    text = json.dumps(document).replace('"here"', '{"limits": {"vramwarden.io/vram": 8.0e9}}')
    assert "(7630Mi on 1 GPU)" in run(text).err


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{this}: &{this} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, this in zip("abcdefghijk", "bcdefghijkl", strict=True)
)


def aliased(length, times):
    return f"a: &a {'x' * length}\nb: [{', '.join(['*a'] * times)}]\nkind: A\n"


def deep(levels):
    return '{"kind": "A", "a":' + '{"a":' * (levels - 1) + "1" + "}" * levels


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        (BOMB, "a.yaml:6", f"aliases stand for more than {MAX_ALIASED} values"),
        (aliased(20_000, 500), "a.yaml:2", f"aliases stand for more than {MAX_ALIASED} values"),
        (aliased(20_000, 490), "a.yaml:1", "it would be written with 9,8"),
        ("a: &a [*a]", "a.yaml:1", "anchor &a contains itself"),
        ("a: 1\nb: *c", "a.yaml:2", r"alias \*c has no anchor &c before it"),
        (
            "a: " + "[" * 200 + "]" * 200,
            "a.yaml:1",
            f"nested more than {DEEPEST_MANIFEST} levels deep",
        ),
        ("[" * 100_000, "a.yaml:1", f"nested more than {DEEPEST_MANIFEST} levels deep"),
        ('{"a":' * 100_000, "a.yaml:1", "nested"),
        (deep(DEEPEST_MANIFEST), "a.yaml:1", f"nested more than {DEEPEST_MANIFEST}"),
        (
            deep(DEEPEST_MANIFEST - 1),
            "a.yaml",
            "nests more than 64 levels",
        ),  # parsed but not searched
        ("a: 1\n---\nb: 1\nb: 2\n", "a.yaml:4", 'key "b" is set twice'),
        ("a: 1\nb: {c: 1, c: 2}\n", "a.yaml:2", 'key "c" is set twice'),
        ('{"a": 1}\n---\n{"b": 1,\n"b": 2}', "a.yaml:3", 'key "b" is set twice'),
        ("a:\n\t- b\n", "a.yaml:2", "indent with spaces, not tabs"),
        (
            "kind: A\n{% if x %}\n",
            "a.yaml:2",
            "any token; it looks like a template: render it first",
        ),
        ("a: 1\nb: @c\n", "a.yaml:2", "found character that cannot start any token"),
        ("a: {b: 1\n", "a.yaml:2", "not valid YAML: did not find expected ',' or '}'"),
        ('{"a": 1,\n"b": }}\n', "a.yaml:2", "not valid YAML"),
        ("a: 1\nb: \x00\n", "a.yaml:2", "control characters are not allowed"),
        ("# a\n---\n\n- a\n- b\n", "a.yaml:3", "a list at the top level; write an object"),
        ("just words", "a.yaml:1", "a plain value at the top level"),
        ("a: .inf", "a.yaml:1", "JSON does not have"),
        ('{"a": 1e999}', "a.yaml:1", "too large a number"),
        ('{"a": NaN}', "a.yaml:1", "JSON does not have"),
        ('{"a": "\\ud800"}', "a.yaml:1", "half of a surrogate pair"),
        ('{"a": "\\udfff"}', "a.yaml:1", "half of a surrogate pair"),
        ("a: 1\n? [b]\n: 2", "a.yaml:2", "a key must be a string"),
        ("a: 1\n~: 2", "a.yaml:2", "a key must be a string"),
        ("a: 1\n<<: 2", "a.yaml:2", "<< must be followed by a mapping"),
        ("a: 1\nb: !!binary eA==", "a.yaml:2", "tag !!binary does not fit here"),
        ("a: 1\nb: !!int yes", "a.yaml:2", "tag !!int does not fit here"),
        ("a: 1\nb: !!int x", "a.yaml:2", "tag !!int does not fit here"),
        ("%YAML 1.2\n---\na: 1", "a.yaml:2", "did not find expected <document start>"),
        ("", "a.yaml", "no objects in it"),
        ("# nothing\n---\n\n---\nnull\n", "a.yaml", "no objects in it"),
    ],
)
def test_what_cannot_be_read_is_one_line_that_says_where_and_why(text, place, problem):
    answers = []
    assert calls(lambda: answers.append(run(text))) < 100_000
    ((code, out, err),) = answers
    assert (code, out) == (2, "")
    assert err.startswith(f"Error: {place}: ")
    assert err.count("\n") == 1
    assert problem.replace("\\", "") in err


@pytest.mark.parametrize("output", ["yaml", "json", "patch"])
def test_beside_a_file_that_cannot_be_read_others_are_judged_and_none_is_printed(output):
    code, out, err = run(POD, "a: [", POD.replace("8Gi", "8GB"), output=output)
    assert (code, out) == (2, "")
    places = [line.split(": ")[:2] for line in err.splitlines()]
    assert places == [
        ["a.yaml:1", "Pod default/train"],
        ["Error", "b.yaml:2"],
        ["c.yaml:6", "Pod default/train"],
        ["No manifests are printed", "first correct what cannot be read."],
        ["1 translated, 1 denied, 1 unreadable"],
    ]


def test_a_surrogate_pair_in_json_is_one_character():
    assert "😀" in run('{"kind": "A", "b": "\\ud83d\\ude00"}', output="json").out


BLANKS = " " * 50_000
INDENTED = {
    "a mapping": POD.replace("  name: train\n  annotations:\n", f"{BLANKS}annotations:\n").replace(
        "    vramwarden", f" {BLANKS}vramwarden"
    ),
    "a list": POD.replace("  - name: main\n    image", f"{BLANKS}- name: main\n{BLANKS}  image"),
    "a text": POD.replace("  name: train", f"  labels:\n    a: |\n{BLANKS}x\n  name: train"),
    "a comment": POD.replace("  name: train", f"{BLANKS}# here\n  name: train"),
    "a scalar": POD.replace("name: train", f"name:\n{BLANKS}train"),
}


@pytest.mark.parametrize("output", ["yaml", "json", "diff", "patch", "summary", "report"])
@pytest.mark.parametrize("text", INDENTED.values(), ids=INDENTED)
def test_one_line_that_is_indented_far_is_not_what_new_lines_are_indented_by(text, output):
    code, out, err = run(text, output=output)
    assert (code, err.count("\n")) == (0, 1 if output != "summary" else 0)
    assert len(out) < 4 * len(text)
    if output == "yaml":
        value = read_yaml(text)[0]
        assert [container["name"] for container in value["spec"]["containers"]] == ["main"]
        assert read_yaml(out)[0] == run(text, output="json").value


def test_aliases_that_stand_for_little_are_fine():
    text = "a: &a {x: 1}\nb: [" + ", ".join(["*a"] * 1000) + "]\nkind: A\n"
    assert run(text) == (0, text, "")


def test_json_output_is_one_object_or_a_list_of_several():
    assert json.loads(run(POD, output="json").out)["kind"] == "Pod"
    several = json.loads(run("kind: A\n---\n# none\n---\nkind: B\nc: on", output="json").out)
    assert several == {
        "apiVersion": "v1",
        "kind": "List",
        "items": [{"kind": "A"}, {"kind": "B", "c": True}],
    }
