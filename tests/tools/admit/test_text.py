from __future__ import annotations

import difflib
import json
import re
from functools import reduce
from operator import getitem

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.call_count import calls
from tests.support.pods import a_pod, a_policy, a_rule
from tests.support.strategies import ANY_JSON, asking_pods
from tests.tools.admit.runs import POD, run
from webhook.core.policy.model import EnforceBy
from webhook.tools.manifests.bounds import MOST_COMPARED_LINES
from webhook.tools.manifests.reading import Layout, read_yaml
from webhook.tools.manifests.writing import dump_yaml, rewrite

DEPLOYMENT = """\
# Licence: ours

--- # the server
apiVersion: apps/v1
kind: Deployment
metadata:
    name:   infer   # spaced
    labels: &labels
        app: infer
spec:
    selector:
        matchLabels: *labels
    template:
        metadata:
            labels: *labels
            annotations:
                vramwarden.io/gpu-memory: 8Gi  # per GPU
        spec:
            containers:
            # the model
            - name: infer
              image: "x"
              args: ["--a", '--b',
                     c]
              command:
              - sh
              - -c
              - |
                 hello
                   there

              # resources follow
              resources: {limits: {cpu: 1}, claims: }   # flow

            # second
            - name: side
              image: >-
                folded
                text
              env:
                - name: A
                  value: "1"
            # volumes below

            volumes:
            - name: v
              emptyDir: {}
            initContainers:
            # fetch it
            - name: fetch
              image: a
              securityContext: {privileged: no}
# the end

---
kind:   ConfigMap
data: {a:   1}  # odd
...
"""


def removed(before: str, after: str) -> list[str]:
    """Return the removed lines, according to a diff."""
    return [
        line[2:]
        for line in difflib.ndiff(before.splitlines(), after.splitlines())
        if line.startswith("- ")
    ]


def test_only_the_lines_that_change_change():
    result = run(DEPLOYMENT)
    assert result.code == 0
    assert removed(DEPLOYMENT, result.out) == [
        "            labels: *labels",
        "              resources: {limits: {cpu: 1}, claims: }   # flow",
    ]


def test_a_label_added_to_an_aliased_map_does_not_show_in_the_selector():
    value = run(DEPLOYMENT.partition("--- # the server")[2].partition("\n---\n")[0]).value
    assert value["spec"]["selector"]["matchLabels"] == {"app": "infer"}
    assert value["metadata"]["labels"] == {"app": "infer"}
    assert "vramwarden.io/managed" in value["spec"]["template"]["metadata"]["labels"]


def test_comments_stay_above_what_they_speak_of():
    lines = [line.strip() for line in run(DEPLOYMENT).out.splitlines()]
    for comment, below in {
        "# Licence: ours": "",
        "# the model": "- name: infer",
        "# resources follow": "resources: {limits: {cpu: 1, vramwarden.io/vram: 8Gi}, "
        "claims: null, requests: {vramwarden.io/vram: 8Gi}} # flow",
        "# second": "- name: side",
        "# volumes below": "",
        "# fetch it": "- name: fetch",
        "# the end": "",
    }.items():
        assert lines[lines.index(comment) + 1] == below


def test_new_list_items_stand_in_the_column_of_their_list():
    out = run(DEPLOYMENT).out
    assert (
        '\n                - name: A\n                  value: "1"\n                - name: N'
        in out
    )
    assert "\n            - name: v\n              emptyDir: {}\n            - name: vram" in out


def is_ours(entry):
    return entry["name"].startswith(("VRAMWARDEN_", "vram-gate"))


@given(asking_pods())
def test_no_comment_gets_lost_or_changes_its_place(pod):
    containers = (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))
    for holder in (*containers, pod["spec"]):
        # Removed entries lose their comments, too.
        for key in {"env", "volumeMounts", "volumes"} & holder.keys():
            kept = [entry for entry in holder[key] or () if not is_ours(entry)]
            holder[key] = kept
            names = [entry["name"] for entry in kept]
            assume(len(names) == len(set(names)))
    text = dump_yaml(pod)
    assume("|" not in text and "?" not in text)
    lines = [
        f"{' ' * (len(line) - len(line.lstrip()))}# {number}\n{line}\n"
        for number, line in enumerate(text.splitlines())
    ]
    lines.append(f"\n# {len(lines)}\n\n---\n# {len(lines) + 1}\n")
    result = run("".join(lines))
    assert "translated" in result.err
    numbers = [str(number) for number in range(len(lines) + 1)]
    assert re.findall("# ([0-9]+)\n", result.out) == numbers
    assert result.out.endswith(lines[-1])


TEXTS = st.text(st.sampled_from("a8 \n\t\r\x85\u2028\ufeff\x07é:#-'\"\\|>&*!%@`{}[],?=~"))


@given(ANY_JSON | TEXTS | st.dictionaries(TEXTS, TEXTS))
def test_what_is_rewritten_reads_as_it_was_meant(value):
    value = {"kind": "A", "value": [{"deep": value}]}
    assert json.dumps(read_yaml(dump_yaml(value))[0]) == json.dumps(value)


@pytest.mark.parametrize(
    "text",
    [
        POD.replace("8Gi", "8GB"),
        POD.replace(
            "    vramwarden.io/gpu-memory: 8Gi", "    a:   'b'   # odd\n\n\n    c: >\n     x"
        ),
        DEPLOYMENT.replace("8Gi", "8GB"),
        '{"kind":  "Pod",\n\t"spec": {}}',
        '{"kind": "A"}{"kind": "B"}\n\n{"kind": "C"}',
        "\ufeff---\nkind: A\n",
        "kind: A\r\nspec: {}\r\n---\r\nkind: B",
        "# only a comment\n---\n---\nkind: A\n---\n",
        "kind: A\n...\n",
        "--- {kind: A}\n",
    ],
)
def test_a_manifest_with_nothing_to_change_comes_out_byte_for_byte(text):
    assert run(text).out == text


def test_a_document_with_nothing_to_change_stays_as_it_is_beside_one_that_changes():
    odd = "# odd\nkind:   ConfigMap\ndata: {a:   1}  # odd\n\n"
    out = run(f"{odd}---\n{POD}---\n{odd}").out
    assert out.startswith(f"{odd}---\napiVersion: v1\nkind: Pod\n")
    assert out.endswith(f"\n---\n{odd}")


def test_files_are_joined_with_separators_where_they_lack_one():
    other = "kind: A"
    assert run(other, other, "---\nkind: B\n").out == "kind: A\n---\nkind: A\n---\nkind: B\n"


def test_windows_line_ends_are_kept():
    out = run(POD.replace("\n", "\r\n")).out
    assert "vram-enforcer" in out
    assert out.count("\r\n") == out.count("\n") == out.count("\r")


def test_json_that_changes_becomes_yaml_between_its_neighbours():
    out = run(
        '{"kind": "A"}{"kind": "Pod", "metadata": {}, "spec": {"containers": ['
        '{"name": "a", "resources": {"limits": {"vramwarden.io/vram": 8e9}}}]}}'
    ).out
    first, _, second = out.partition("---\n")
    assert first == '{"kind": "A"}\n'
    assert second.startswith("kind: Pod\nmetadata:\n")
    assert "      limits:\n        vramwarden.io/vram: 8e9\n" in second


def test_a_mapping_merged_into_two_containers_is_edited_in_one():
    text = """\
kind: Pod
metadata:
  annotations: {vramwarden.io/gpu-memory: a=8Gi}
spec:
  containers:
  - &base
    name: a
    resources: &r {limits: {cpu: 1}}
    env: &e [{name: A, value: b}]
  - <<: *base
    name: b
  - {name: c, resources: *r, env: *e}
"""
    result = run(text)
    assert "  - <<:" in result.out
    assert [result.out.count(anchor) for anchor in ("&r ", "&e ")] == [1, 1]
    a, b, c = result.value["spec"]["containers"]
    assert a["resources"]["limits"] == {"cpu": 1, "vramwarden.io/vram": "8Gi"}
    assert b["resources"] == c["resources"] == {"limits": {"cpu": 1}}
    void = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    assert b["env"] == c["env"] == [{"name": "A", "value": "b"}, void]
    assert void not in a["env"]


SHARED_SPEC = """\
kind: PodList
items:
- metadata: &m {name: x, namespace: team-a, annotations: {vramwarden.io/gpu-memory: 8Gi}}
  spec: &spec
    containers: [{name: a, image: 'b'}]
- metadata: {<<: *m, namespace: team-b}
  spec: *spec # the same
"""
SHARED_TEMPLATE = """\
kind: DeploymentList
items:
- metadata: {name: x, namespace: team-a}
  spec: &spec
    template:
      metadata: {annotations: {vramwarden.io/gpu-memory: 8Gi}}
      spec: {containers: [{name: a, image: 'b'}]}
- metadata: {name: x, namespace: team-b}
  spec: *spec
"""


@pytest.mark.parametrize(
    ("text", "within", "gone"),
    [
        pytest.param(
            SHARED_SPEC,
            [],
            ["- metadata: {<<: *m, namespace: team-b}", "  spec: *spec # the same"],
            id="a pod's metadata and spec",
        ),
        pytest.param(SHARED_TEMPLATE, ["spec", "template"], ["  spec: *spec"], id="a template"),
    ],
)
def test_what_two_objects_share_is_edited_in_the_one_that_changes(text, within, gone):
    policy = a_policy(a_rule(namespaces=("team-b",)))
    result = run(text, policy=policy)
    items = result.value["items"]
    first, second = (reduce(getitem, [*within, "spec"], item) for item in items)
    assert first == {"containers": [{"name": "a", "image": "b"}]}
    assert second["shareProcessNamespace"] is True
    assert removed(text, result.out) == gone
    assert json.loads(run(text, policy=policy, output="json").out)["items"] == items


@pytest.mark.parametrize("init", ["  # fetches\n\n  - name: fetch # eol\n    image: a\n", ""])
def test_comments_stay_where_a_container_goes(init):
    head = POD.replace("spec:\n", f"spec:\n  # first\n  initContainers: # eol\n{init}  # second\n")
    once = run(head + "    # third\n    tty: true\n  # fourth\n  hostname: x\n").out
    assert "\n  initContainers:" in once
    assert "vram-enforcer" in once
    twice = run(once, policy=a_policy(a_rule(enforcement={"by": EnforceBy.NONE}))).out
    assert "- name: vram-enforcer" not in twice
    thrice = run(twice).out
    for text in (once, twice, thrice):
        comments = re.findall("# (first|fetches|second|third|fourth)\n", text)
        assert comments == ["first", *["fetches"] * bool(init), "second", "third", "fourth"]
    if init:
        assert re.search("initContainers: +# eol\n  # fetches\n\n  - name: fetch # eol", twice)


FIRST = "    resources: &r # small\n      limits:\n        cpu: 1\n"
SECOND = "  - name: b\n    resources: *r\n"
LIMITED = "    resources: # small\n      limits:\n        cpu: 1\n        vramwarden.io/vram: 8Gi\n"
SCRIPT = "    # above\n    script: |+\n      a\n\n\n"


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        pytest.param(
            POD.replace("    image: example\n", f"{FIRST}  # second\n{SECOND}").replace(
                "8Gi", "b=8Gi"
            ),
            "\n      value: void\n  # second\n  - name: b\n",
            id="a comment below an anchored value stays below its container",
        ),
        pytest.param(
            POD.replace("    image: example\n", FIRST + SECOND),
            LIMITED,
            id="a comment beside an anchor stays beside what is edited",
        ),
        pytest.param(
            POD + "    resources: {limits: {cpu: '1', memory: \"1Gi\"}}\n",
            "limits: {cpu: '1', memory: \"1Gi\", vramwarden.io/vram: 8Gi}",
            id="quotes are kept",
        ),
        pytest.param(
            f"{POD}{SCRIPT}---\nkind: A\n",
            f"{SCRIPT}    resources:\n",
            id="blank lines that belong to a text stay in it",
        ),
    ],
)
def test_what_stands_around_an_edit_stays_as_it_is(text, edited):
    out = run(text).out
    assert out.count(edited) == 1
    assert out.count("# second") == text.count("# second")
    assert out.endswith("---\nkind: A\n") == text.endswith("---\nkind: A\n")


def test_an_empty_list_or_map_is_filled_as_a_block_and_comments_stay_below():
    text = POD.replace("spec:\n", "spec:\n  initContainers: []\n  # 1\n  volumes: [] # 2\n  # 3\n")
    out = run(text + "    resources: {} # 4\n  nodeSelector: {}\n# 5\n").out
    assert "\n  initContainers:\n  - name: vram-enforcer\n" in out
    assert "\n  nodeSelector:\n    vramwarden.io/gpu: " in out
    assert re.search("\n    resources: +# 4\n      requests:\n", out)
    assert re.findall("# [0-9]", out) == ["# 1", "# 2", "# 3", "# 4", "# 5"]
    assert re.search("\n  # 1\n  volumes: +# 2\n", out)
    assert "\n  # 3\n  containers:\n" in out


def test_a_text_that_would_not_read_as_wanted_is_rewritten():
    assert rewrite("a: 1 # b\n", {}, {"a": 1}, Layout()) == "a: 1 # b\n"
    assert rewrite("a: 1 # b\n", {}, {"a": 2}, Layout()) == "a: 2\n"
    assert rewrite("a: 1\n", {}, {"a": True}, Layout()) == "a: true\n"


def test_a_diff_of_json_compares_it_as_yaml():
    pod = a_pod("8Gi")
    shown = run(json.dumps(pod), output="diff").out
    assert not re.search("^-(?!-- )", shown, re.MULTILINE)
    assert "\n+  shareProcessNamespace: true\n" in shown


@pytest.mark.parametrize("step", [1, 2, 3, 4, 8])
def test_new_lines_are_indented_as_the_others(step):
    text = re.sub(r"(?m)^(  )+", lambda match: match[0][::2] * step, POD)
    text = text.replace("- name: main\n" + " " * 2 * step, "- name: main\n" + " " * (step + 2))
    out = run(text).out
    assert removed(text, out) == []
    assert f"\n{' ' * step}nodeSelector:\n{' ' * 2 * step}vramwarden.io/gpu: " in out


def test_a_strings_style_is_chosen_so_that_every_reader_takes_it_for_a_string():
    styles = {
        "yes": '"yes"',
        "8e9": '"8e9"',
        "0777": '"0777"',
        "1:30": '"1:30"',
        "2001-01-01": '"2001-01-01"',
        "": '""',
        "null": '"null"',
        "plain": "plain",
        "x: y": "'x: y'",
        "~": '"~"',
    }
    selector = {f"k{number}": text for number, text in enumerate(styles)}
    out = run(POD, policy=a_policy(a_rule(node_selector=selector))).out
    for key, text in selector.items():
        assert f"    {key}: {styles[text]}\n" in out


def test_a_diff_shows_the_change_alone_and_is_coloured_on_a_terminal_only(monkeypatch):
    plain = run(POD, output="diff").out
    assert plain.startswith("--- a.yaml\n+++ a.yaml (admitted)\n@@ -4,7 +4,")
    assert "\n+  shareProcessNamespace: true" in plain
    assert not re.search("^-(?!-- )", plain, re.MULTILINE)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = run(POD, output="diff", terminal=True)
    assert "\x1b[32m+  shareProcessNamespace: true\x1b[0m\n" in shown.out
    assert shown.err.startswith("\x1b[32mPod default/train: translated")
    assert re.sub("\x1b\\[[0-9]+m", "", shown.out) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(POD, output="diff", terminal=True).out == plain


def test_a_diff_is_empty_where_nothing_changes_and_shows_a_missing_line_end():
    assert run(POD.replace("8Gi", "8GB"), output="diff").out == ""
    assert "\\ No newline at end of file\n" in run(POD.rstrip("\n"), output="diff").out


@pytest.mark.process
def test_twice_as_many_comments_cost_twice_the_work():
    """This holds for more lines than are compared one by one, which takes quadratic time."""
    few, many = ("# c\n" * lines for lines in (MOST_COMPARED_LINES, 2 * MOST_COMPARED_LINES))
    assert calls(lambda: run(many + POD + many)) < 2.5 * calls(lambda: run(few + POD + few))
    assert run(many + POD + many).out.count("# c\n") == 4 * MOST_COMPARED_LINES
