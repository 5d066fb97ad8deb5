"""Policies in several files: order, shared definitions, and problems across files."""

# ruff: noqa: E501 - a row of a table is one line: a message cut in two cannot be searched for

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

import webhook
from tests.support.policies import HEAD, IMAGE, load, problems, write
from webhook.adapters.policy import files as policy_files
from webhook.adapters.policy.files import PolicyInvalidError, load_config_map, load_policy
from webhook.core.policy.match import Subject, matches_any


def rules(policy):
    return [rule.name for rule in policy.rules]


def test_rules_are_tried_by_file_name_and_then_in_order(tmp_path):
    folder = write(
        tmp_path / "policy", b="  rules: [{name: d}, {name: c}]", a="  rules: [{name: z}]"
    )
    (folder / "aa.yml").write_text(HEAD + "  rules: [{name: w}]")
    assert rules(load(folder)) == ["z", "w", "d", "c"]


def test_the_first_rule_that_matches_wins(tmp_path):
    folder = write(
        tmp_path / "policy",
        a="""  rules:
  - {name: labelled, match: {namespaces: ["a-*"], podLabels: {tier: gold}}}
  - {name: team-a, match: {namespaces: ["a-*", b]}}
""",
        b="  rules: [{name: b-again, match: {namespaces: [b, c]}}]",
    )
    policy = load(folder)

    def rule(namespace, **labels):
        found = policy.rule_for(Subject(namespace=namespace, pod_labels=labels))
        return found and found.name

    assert rule("a-1", tier="gold") == "labelled"
    assert rule("a-1", tier="iron") == rule("b") == "team-a"
    assert rule("c") == "b-again"
    assert rule("a") is None


def test_documents_of_one_file_are_one_policy(tmp_path):
    folder = write(
        tmp_path / "policy", a=f"  rules: [{{name: a}}]\n---\n{HEAD}  rules: [{{name: b}}]"
    )
    assert rules(load(folder)) == ["a", "b"]


def test_other_files_and_folders_are_ignored(tmp_path):
    folder = write(tmp_path / "policy", a="  rules: [{name: a}]")
    for name in (".hidden.yaml", "..swap.yaml", "a.yaml~", "README.md", "b.json"):
        (folder / name).write_text("not a policy: [")
    (folder / "sub.yaml").mkdir()
    assert rules(load(folder)) == ["a"]


def test_one_file_is_a_policy_too_and_an_empty_folder_one_without_rules(tmp_path):
    folder = write(tmp_path / "policy", a="  rules: [{name: a}]", b="  rules: [{name: b}]")
    assert rules(load(folder / "b.yaml")) == ["b"]
    assert rules(load(write(tmp_path / "empty"))) == []


def test_what_is_missing_is_reported(tmp_path):
    assert problems(tmp_path / "none") == [
        f"{tmp_path}/none: cannot be read: no such file or directory"
    ]


def test_files_that_cannot_be_read_are_told_beside_what_is_wrong_with_others(tmp_path):
    folder = write(tmp_path / "policy", c="  rulez: []")
    (folder / "a.yaml").symlink_to(tmp_path / "gone")
    os.mkfifo(folder / "b.yaml")
    found = problems(folder)
    assert found[0] == "a.yaml: cannot be read: no such file or directory"
    assert found[1] == "b.yaml: cannot be read: it is not a regular file"
    assert found[2].startswith("c.yaml:5: spec.rulez: unknown field")


def test_a_huge_file_is_rejected(tmp_path):
    folder = write(tmp_path / "policy")
    (folder / "a.yaml").write_bytes(b"#" * (2**20 + 1))
    assert problems(folder) == [
        "a.yaml: is larger than 1048576 bytes (1Mi), the limit for a policy file; split it"
    ]


def test_classes_are_shared_by_all_files(tmp_path):
    folder = write(
        tmp_path / "policy",
        a="  rules: [{name: a, classes: {allowed: [t4, 'a*'], default: t4}}]",
        b="  classes: {t4: {nodeSelector: {gpu: t4}}, a100: {}}",
    )
    policy = load(folder)
    assert set(policy.classes) == {"t4", "a100"}
    assert policy.classes["t4"].node_selector == {"gpu": "t4"}


def test_whole_gpu_resources_of_the_files_are_added_up(tmp_path):
    folder = write(
        tmp_path / "policy",
        a="  wholeGPUResources: [example.com/gpu]",
        b="  wholeGPUResources: [example.com/gpu, nvidia.com/mig-*]",
        c="  rules: []",
    )
    assert load(folder).whole_gpu_resources == ("example.com/gpu", "nvidia.com/mig-*")


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (
            "  rules:\n  - name: x\n",
            "  rules:\n  - name: w\n  - name: x\n",
            'b.yaml:7: spec.rules[1].name: rule "x" is defined twice; it stands in {}a.yaml:6 already',
        ),
        (
            "  classes:\n    x: {}\n",
            "  classes: {x: {}}\n",
            'b.yaml:5: spec.classes.x: class "x" is defined twice; it stands in {}a.yaml:6 already',
        ),
        (
            "  rules: [{name: x}, {name: x}]\n",
            "  rules: []\n",
            'a.yaml:5: spec.rules[1].name: rule "x" is defined twice; it stands in {}a.yaml:5 already',
        ),
        (
            "  rules:\n  - name: x\n    classes:\n      allowed: [t4, t5]\n",
            "  classes: {t4: {}}\n",
            'a.yaml:8: spec.rules[0].classes.allowed[1]: class "t5" is not defined; the policy has t4',
        ),
        (
            "  rules:\n  - name: x\n    classes: {allowed: [], default: t4}\n",
            "  classes: {t4: {}}\n",
            'a.yaml:7: spec.rules[0].classes.default: class "t4" is not in classes.allowed; add it there',
        ),
        (
            "  rules:\n  - name: x\n    nodeSelector: {gpu: a100}\n",
            "  classes: {t4: {nodeSelector: {gpu: t4}}}\n",
            'a.yaml:7: spec.rules[0].nodeSelector.gpu: wants "a100" but class "t4" in {}b.yaml:5 wants "t4", so no node fits; make them agree, or leave the class out of classes.allowed',
        ),
        (
            "  rules:\n  - name: x\n    enforcement: {driverLimit: Require}\n",
            "  classes: {t4: {nodeSelector: {vramwarden.io/driver-limit: 'no'}}}\n",
            'a.yaml:7: spec.rules[0].enforcement.driverLimit: wants "true" but class "t4" in {}b.yaml:5 wants "no", so no node fits; make them agree, or leave the class out of classes.allowed',
        ),
        (
            "  rules:\n  - name: x\n    enforcement: {driverLimit: Require}\n",
            "  classes: {t4: {accounting: CapOnly}}\n",
            'a.yaml:7: spec.rules[0].enforcement.driverLimit: Require needs accounting VRAM, also of class "t4" in {}b.yaml:5; write Auto, or leave the class out of classes.allowed',
        ),
        (
            "  rules:\n  - name: x\n    enforcement: {by: Sentry}\n",
            "  classes: {t4: {accounting: CapOnly}}\n",
            'a.yaml:7: spec.rules[0].enforcement.by: Sentry needs accounting VRAM, also of class "t4" in {}b.yaml:5; write Sidecar, or leave the class out of classes.allowed',
        ),
        (
            "  rules:\n  - name: x\n    memory: {max: 8Gi}\n    translateWholeGPU: 16Gi\n",
            "  rules: []\n",
            "a.yaml:8: spec.rules[0].translateWholeGPU: 16Gi is more than memory in {}a.yaml:7 allows, 8Gi; make them agree, or no pod is translated",
        ),
        (
            "  rules:\n  - name: x\n    memory: {min: 17Gi}\n    translateWholeGPU: 16Gi\n",
            "  rules: []\n",
            "a.yaml:8: spec.rules[0].translateWholeGPU: 16Gi is less than memory in {}a.yaml:7 wants, 17Gi; make them agree, or no pod is translated",
        ),
    ],
)
def test_what_only_shows_across_files_is_reported(tmp_path, a, b, expected):
    folder = write(tmp_path / "policy", a=a, b=b)
    assert problems(folder) == [expected.replace("{}", "")]


def test_a_class_that_a_rule_does_not_allow_may_contradict_it(tmp_path):
    folder = write(
        tmp_path / "policy",
        a="  classes: {t4: {nodeSelector: {gpu: t4}}, a100: {}}\n"
        "  rules:\n"
        "  - {name: x, nodeSelector: {gpu: a100}, classes: {allowed: [a100]}}\n"
        "  - {name: w, nodeSelector: {gpu: a100}, action: Ignore}\n",
    )
    assert rules(load(folder)) == ["x", "w"]


def test_a_class_in_a_file_that_cannot_be_used_causes_no_second_message(tmp_path):
    folder = write(
        tmp_path / "policy",
        a="  rules: [{name: x, classes: {allowed: [t4]}}]",
        b="  classes: {t4: {accounting: None}}",
    )
    assert len(problems(folder)) == 1


def test_the_digest_tells_every_change_of_files_names_and_image(tmp_path):
    one = write(tmp_path / "one", a="  rules: [{name: a}]")
    same = write(tmp_path / "same", a="  rules: [{name: a}]")
    comment = write(tmp_path / "comment", a="  rules: [{name: a}] # why")
    renamed = write(tmp_path / "renamed", b="  rules: [{name: a}]")
    more = write(tmp_path / "more", a="  rules: [{name: a}]", b="  rules: []")
    assert load(one).digest == load(same).digest == load(one / "a.yaml").digest
    others = [load(folder).digest for folder in (comment, renamed, more)]
    others.append(load_policy(one, enforcer_image="other").digest)
    assert len({load(one).digest, *others}) == 5
    assert len(load(one).digest) == 64


def a_file(name, data):
    return policy_files.PolicyText(name, "", data)


def test_the_digest_tells_two_releases_and_no_two_folders_look_alike_to_it():
    files = policy_files.Snapshot((a_file("a", b"b"), a_file("c", b"d")), ())
    assert files.digest(IMAGE) == files.digest(IMAGE, release=webhook.__version__)
    joined = policy_files.Snapshot((a_file("a", b"bcd"),), ())
    assert files.digest(IMAGE) not in {files.digest(IMAGE, release="0.0.9"), joined.digest(IMAGE)}


def test_a_policy_can_be_read_without_its_examples(tmp_path):
    spec = "  examples: [{name: a, pod: {namespace: a}, expect: {allowed: false}}]"
    folder = write(tmp_path / "policy", a=spec)
    assert len(load_policy(folder, enforcer_image=IMAGE, run_examples=False).examples) == 1
    assert len(problems(folder)) == 1


def glob(name: str, pattern: str) -> bool:
    """Match a pattern by trying all possibilities: slow, but obviously correct."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(glob(name[cut:], pattern[1:]) for cut in range(len(name) + 1))
    return bool(name) and name[0] == pattern[0] and glob(name[1:], pattern[1:])


@given(st.text("ab\n", max_size=8), st.text("ab*", max_size=8))
def test_a_star_is_any_text(name, pattern):
    assert matches_any(name, (pattern,)) == glob(name, pattern)


def test_many_stars_cost_no_exponential_time():
    assert not matches_any("a" * 63, ("*a" * 31 + "b",))


def test_texts_of_a_config_map_are_the_policy_of_a_folder_with_these_files(tmp_path):
    folder = write(tmp_path / "policy", b="  rules: [{name: b}]\n", a="  rules: [{name: a}]\n")
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    others = {"notes.txt": "no policy", ".hidden.yaml": "nor this"}
    found = load_config_map(texts | others, "x", enforcer_image=IMAGE)
    assert found == load(folder)
    assert rules(found) == ["a", "b"]


def test_problems_of_texts_name_their_place():
    with pytest.raises(PolicyInvalidError) as error:
        load_config_map({"a.yaml": "kind: VRAMPolicy\n"}, "gpu/policies", enforcer_image=IMAGE)
    assert {problem.file for problem in error.value.problems} == {"gpu/policies/a.yaml"}
