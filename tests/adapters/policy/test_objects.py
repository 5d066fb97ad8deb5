"""Policies as objects: how they join the files, which last good set counts, what a status says."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from tests.support.policies import HEAD, IMAGE, SHIPPED, write
from webhook.adapters.bounds import MOST_OBJECTS, MOST_POLICY_BYTES, STATUS_LETTERS, STATUS_PROBLEMS
from webhook.adapters.policy.files import (
    PolicyInvalidError,
    load_config_map,
    load_policy,
)
from webhook.adapters.policy.objects import (
    policy_text,
    says,
    status_of,
    with_times,
)
from webhook.adapters.policy.source import PolicySource, Reload

GENERATION = 7


def an_object(name, spec):
    """Return an object whose spec is written as in a file."""
    written = yaml.safe_load(HEAD + spec)
    written["metadata"]["name"] = name
    return policy_text(name, json.dumps(written, sort_keys=True).encode())


def all_of(name, where, most="10Gi"):
    return f"  rules: [{{name: {name}, match: {{namespaces: [{where}]}}, memory: {{max: {most}}}}}]"


FIRST, SECOND = an_object("first", all_of("one", "a")), an_object("second", all_of("two", "b"))
BROKEN = an_object("second", all_of("two", "b", most="8GB"))
BROKEN_FIRST = an_object("first", all_of("one", "a", most="8GB"))


class Replica:
    """A source whose objects a test changes."""

    def __init__(self, folder, *objects, remembered=None):
        self.objects = objects
        self.asked = 0
        self.kept = remembered
        self.source = PolicySource(
            folder, IMAGE, objects=lambda: self.objects, remembered=self.remembered
        )

    def remembered(self):
        self.asked += 1
        return self.kept

    def has(self, *objects):
        self.objects = objects
        return self.source.refresh()

    @property
    def rules(self):
        return [rule.name for rule in self.source.current.rules]

    def status(self, text):
        return status_of(text, GENERATION, self.source.judged)


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "policy", middle=all_of("folder", "c"))


def wrong(folder, *objects):
    """Return what keeps a replica from its start."""
    with pytest.raises(PolicyInvalidError) as error:
        Replica(folder, *objects)
    return [str(problem) for problem in error.value.problems]


def test_files_and_objects_are_one_list_in_the_order_of_their_names(folder):
    last, first = an_object("zz", all_of("last", "z")), an_object("aa", all_of("early", "a"))
    assert Replica(folder, last, first).rules == ["early", "folder", "last"]


def test_the_digest_is_that_of_the_same_set_whatever_the_order_in_which_it_came(folder):
    digests = {Replica(folder, *one).source.current.digest
               for one in ((FIRST, SECOND), (SECOND, FIRST))}  # fmt: skip
    assert len(digests) == 1
    assert Replica(folder, FIRST).source.current.digest not in digests
    texts = {"middle.yaml": (folder / "middle.yaml").read_text()}
    assert load_config_map(texts, "x", [FIRST, SECOND], enforcer_image=IMAGE).digest in digests


def test_an_object_with_the_name_of_a_file_is_an_error_that_names_both(folder):
    (problem,) = wrong(folder, an_object("middle", all_of("other", "d")))
    assert problem == (
        "vrampolicies/middle: metadata.name: takes the place of middle.yaml in the list, as "
        f"{folder}/middle.yaml does; rename one"
    )


def test_what_shows_across_names_object_and_path_where_a_file_has_a_line(folder):
    twice = 'spec.rules[0].name: rule "folder" is defined twice; it stands in'
    assert wrong(folder, an_object("twice", all_of("folder", "d"))) == [
        f"vrampolicies/twice: {twice} {folder}/middle.yaml:5 already"
    ]
    assert wrong(folder, an_object("aa", all_of("folder", "d"))) == [
        f"{folder}/middle.yaml:5: {twice} vrampolicies/aa: spec.rules[0].name already"
    ]


def test_an_example_of_a_file_that_an_object_breaks_says_which_rule_came_first(tmp_path):
    example = """
  examples:
  - name: c gets ten
    pod: {namespace: c, annotations: {vramwarden.io/gpu-memory: 10Gi}}
    expect: {allowed: true, rule: folder}
"""
    folder = write(tmp_path / "policy", middle=all_of("folder", "c") + example)
    found = wrong(folder, an_object("early", all_of("narrow", "c", most="4Gi")))[0]
    assert found.startswith(f"{folder}/middle.yaml:7: example 'c gets ten': wanted ")
    assert "rule narrow in vrampolicies/early: spec.rules[0] matched first" in found


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_an_object_reads_as_the_file_does(file, tmp_path):
    (tmp_path / "none").mkdir()
    written = next(yaml.safe_load_all(file.read_text()))
    text = policy_text(file.stem, json.dumps(written).encode())
    found = PolicySource(tmp_path / "none", IMAGE, objects=lambda: (text,)).current
    wanted = load_policy(file, enforcer_image=IMAGE)

    def bare(policy):
        return [replace(rule, where="") for rule in policy.rules], policy.classes

    assert bare(found) == bare(wanted)
    assert len(found.examples) == len(wanted.examples)


NASTY = {
    "words that YAML reads as booleans": {"nodeSelector": {"a": "no", "on": "y"}},
    "numbers as text": {"nodeSelector": {"a": "0755", "b": "1e3", "c": "null"}},
    "an emoji, and quotes": {"message": "ask \"gpu\" \\ 'help' \U0001f600"},
    "an int for an amount": {"memory": {"max": 8589934592}},
}


@pytest.mark.parametrize("fields", NASTY.values(), ids=NASTY)
def test_what_json_says_is_taken_as_it_is(fields, folder):
    spec = {"rules": [{"name": "nasty", **fields}]}
    written = yaml.safe_load(HEAD + "  {}") | {"spec": spec}
    text = policy_text("aa", json.dumps(written, ensure_ascii=False).encode())
    (rule, _) = Replica(folder, text).source.current.rules
    assert rule.name == "nasty"
    assert rule.node_selector == fields.get("nodeSelector", rule.node_selector)
    assert rule.message == fields.get("message")
    assert rule.memory.max_bytes == fields.get("memory", {}).get("max")


@pytest.mark.parametrize("text", ["a\x7fb", "a\u2028b"])
def test_what_no_file_may_hold_is_a_problem_without_a_line(text, folder):
    spec = {"rules": [{"name": "a", "message": text}]}
    written = yaml.safe_load(HEAD + "  {}") | {"spec": spec}
    (found,) = wrong(folder, policy_text("aa", json.dumps(written, ensure_ascii=False).encode()))
    assert found.startswith("vrampolicies/aa: the invisible character U+")


def test_an_object_that_could_not_be_read_is_no_policy(folder):
    """As `identified` of adapters/kube describes what is too large."""
    written = {"apiVersion": "vramwarden.io/v1alpha1", "kind": "VRAMPolicy"}
    written |= {"metadata": {"name": "aa"}, "spec": "too large to be read"}
    assert wrong(folder, policy_text("aa", json.dumps(written).encode())) == [
        'vrampolicies/aa: spec: must be a map of fields, not "too large to be read"'
    ]


def test_too_many_objects_or_bytes_are_a_problem_and_no_policy(folder):
    many = [an_object(f"o{n}", all_of(f"r{n}", "a")) for n in range(MOST_OBJECTS + 1)]
    assert wrong(folder, *many) == ["vrampolicies: are 65 objects; at most 64 are read: join some"]
    assert len(Replica(folder, *many[1:]).rules) == MOST_OBJECTS + 1
    half = b" " * (MOST_POLICY_BYTES // 2)
    large = [replace(one, data=one.data + half) for one in (FIRST, SECOND)]
    assert "bytes; at most 1048576 (1Mi) are read: shorten some" in wrong(folder, *large)[0]
    assert Replica(folder, large[0]).rules == ["one", "folder"]


def test_the_set_is_in_force_as_a_whole_or_not_at_all(folder):
    replica = Replica(folder, FIRST)
    assert replica.has(FIRST, SECOND).loaded
    assert replica.rules == ["one", "folder", "two"]
    reload = replica.has(an_object("first", all_of("changed", "a")), BROKEN)
    assert [problem.file for problem in reload.problems] == ["vrampolicies/second"]
    assert replica.rules == ["one", "folder", "two"]
    assert replica.has(an_object("first", all_of("changed", "a")), BROKEN) == Reload()
    assert replica.has(an_object("first", all_of("changed", "a"))).loaded
    assert replica.rules == ["changed", "folder"]
    assert replica.has().loaded
    assert replica.rules == ["folder"]


def test_a_folder_that_is_gone_changes_nothing_of_what_is_known_of_objects(folder):
    replica = Replica(folder, FIRST)
    folder.rename(folder.parent / "gone")
    assert replica.has(FIRST, SECOND).problems
    assert replica.rules == ["one", "folder"]
    assert dict(replica.source.judged.read) == {"first.yaml": FIRST.data}


STARTS = {
    "all is valid": ((FIRST, SECOND), (FIRST,), ["one", "folder", "two"], 0),
    "the last good set is in force": (
        (FIRST, BROKEN),
        (FIRST, SECOND),
        ["one", "folder", "two"],
        1,
    ),
    "the last good set had none": ((FIRST, BROKEN), (), ["folder"], 1),
    "none is known": ((FIRST, BROKEN), None, None, 1),
    "that is not valid either": ((FIRST, BROKEN), (BROKEN_FIRST,), None, 1),
}


@pytest.mark.parametrize(("now", "kept", "rules", "asked"), STARTS.values(), ids=STARTS)
def test_a_start_beside_an_invalid_object(folder, now, kept, rules, asked):
    if rules is None:
        with pytest.raises(PolicyInvalidError) as error:
            Replica(folder, *now, remembered=kept)
        assert [problem.file for problem in error.value.problems] == ["vrampolicies/second"]
        return
    replica = Replica(folder, *now, remembered=kept)
    assert (replica.rules, replica.asked) == (rules, asked)
    assert bool(replica.source.refresh().problems) is bool(asked)  # reported once it runs
    assert replica.rules == rules


def test_a_status_of_what_is_in_force(folder):
    assert Replica(folder, FIRST).status(FIRST) == {
        "observedGeneration": GENERATION,
        "inForce": True,
        "digest": Replica(folder, FIRST).source.current.short_digest,
        "rules": 1,
        "examples": 0,
        "message": "its rules count",
        "errors": [],
        "examplesFailed": [],
        "conditions": [
            {
                "type": "InForce",
                "status": "True",
                "reason": "InForce",
                "message": "",
                "observedGeneration": GENERATION,
            }
        ],
    }


def reason(status):
    return status["conditions"][0]["reason"]


def test_a_status_says_what_is_wrong_or_for_whom_it_waits(folder):
    replica = Replica(folder, FIRST)
    changed = an_object("first", all_of("one", "a", most="4Gi"))
    replica.has(changed, BROKEN)
    wrong = 'spec.rules[0].memory.max: "8GB" is not a Kubernetes quantity; use 8G or 8Gi'
    status = replica.status(BROKEN)
    assert (reason(status), status["message"]) == (
        "Invalid",
        f"{wrong}; nothing of it is in force",
    )
    assert (status["inForce"], status["rules"], status["examples"]) == (False, None, None)
    path, _, detail = wrong.partition(": ")
    assert status["errors"] == [{"path": path, "message": detail}]
    waiting = replica.status(changed)
    assert reason(waiting) == "OthersInvalid"
    assert waiting["conditions"][0]["message"] == (
        f"waits for vrampolicies/second: {wrong}; what it held before stays in force"
    )
    assert reason(replica.status(FIRST)) == "InForce"  # its content is the one that counts


def test_a_status_says_which_examples_fail(folder):
    example = """
  examples:
  - name: all get all
    pod: {namespace: a, annotations: {vramwarden.io/gpu-memory: 80Gi}}
    expect: {allowed: true}
"""
    failing = an_object("first", all_of("one", "a") + example)
    replica = Replica(folder)
    replica.has(failing)
    status = replica.status(failing)
    assert reason(status) == "ExamplesFailed"
    ((example,), errors) = status["examplesFailed"], status["errors"]
    assert example["name"] == "all get all"
    assert example["message"].startswith("wanted allowed: true, got denied")
    assert errors == []
    assert status["message"].startswith("example 'all get all': wanted allowed")


def test_a_status_has_bounds(folder):
    names = [f"r{n}" for n in range(2 * STATUS_PROBLEMS)]
    rules = ", ".join(f"{{name: {name}, memory: {{max: {'8' * 300}GB}}}}" for name in names)
    wrong = an_object("first", f"  rules: [{rules}]\n  {'x' * 900}: 1")
    replica = Replica(folder)
    replica.has(wrong)
    status = replica.status(wrong)
    assert len(status["errors"]) == STATUS_PROBLEMS
    texts = [text for error in status["errors"] for text in error.values()]
    texts += [status["message"], status["conditions"][0]["message"]]
    assert max(map(len, texts)) <= STATUS_LETTERS
    assert "more problems)" in status["conditions"][0]["message"]


NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def test_a_condition_keeps_its_time_while_it_stays_and_that_is_no_difference(folder):
    replica = Replica(folder, FIRST)
    status = replica.status(FIRST)
    stored = with_times(status, {}, NOW)
    assert stored["conditions"][0]["lastTransitionTime"] == NOW
    assert says(stored, status)
    assert with_times(status, stored, LATER) == stored
    replica.has(BROKEN)
    other = replica.status(BROKEN)
    assert not says(stored, other)
    written = with_times(other, stored, LATER)
    assert written["conditions"][0]["lastTransitionTime"] == LATER
    absent = {key: value for key, value in written.items() if value is not None}
    assert says(absent, other)  # the API server stores no null


@pytest.mark.parametrize("stored", [{}, {"conditions": None}, {"conditions": ["x"]}, {"a": 1}])
def test_a_status_that_nobody_of_us_wrote_says_something_else(stored, folder):
    status = Replica(folder, FIRST).status(FIRST)
    assert not says(stored, status)
    assert with_times(status, stored, NOW)["conditions"][0]["lastTransitionTime"] == NOW


def test_what_the_api_server_adds_to_a_file_is_no_mistake_and_a_typo_still_is(tmp_path):
    added = {
        "uid": "u", "resourceVersion": "1", "generation": 2, "creationTimestamp": "2026",
        "managedFields": [{"manager": "x", "fieldsV1": {"f:spec": {".": {}}}}],
        "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["x"],
        "ownerReferences": [{"kind": "x"}], "selfLink": "x", "deletionTimestamp": "2026",
        "deletionGracePeriodSeconds": 0,
    }  # fmt: skip
    written = yaml.safe_load(HEAD + all_of("one", "a"))
    written["metadata"] |= added
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump(written | {"status": {"inForce": True}}))
    assert [rule.name for rule in load_policy(path, enforcer_image=IMAGE).rules] == ["one"]
    written["metadata"]["lables"] = {}
    path.write_text(yaml.safe_dump(written))
    with pytest.raises(PolicyInvalidError, match="did you mean labels"):
        load_policy(path, enforcer_image=IMAGE)


def test_a_list_of_objects_is_read_as_its_items_with_their_lines(tmp_path):
    """As `kubectl get vrampolicies -o yaml` prints them."""
    items = [yaml.safe_load(HEAD + all_of(name, "a")) for name in ("one", "two")]
    written = {"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"x": ""}}
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump(written))
    assert [rule.name for rule in load_policy(path, enforcer_image=IMAGE).rules] == ["one", "two"]
    text = yaml.safe_dump(written).replace("max: 10Gi", "max: 10GB")
    path.write_text(text)
    lines = [n for n, line in enumerate(text.splitlines(), start=1) if "10GB" in line]
    with pytest.raises(PolicyInvalidError) as error:
        load_policy(path, enforcer_image=IMAGE)
    assert [(problem.line, problem.path) for problem in error.value.problems] == [
        (line, "spec.rules[0].memory.max") for line in lines
    ]
    path.write_text("kind: List\nitems: x\n")
    with pytest.raises(PolicyInvalidError, match=r'a\.yaml:1: kind: "List" is not'):
        load_policy(path, enforcer_image=IMAGE)
