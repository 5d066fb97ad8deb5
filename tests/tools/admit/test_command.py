from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.tools.admit.runs import ADMIT_POLICY, POD, Terminal
from webhook.tools.admit.output.write import Output
from webhook.tools.manifests.reading import read_yaml


def test_the_shipped_policy_is_the_default(invoke, tmp_path):
    (tmp_path / "pod.yaml").write_text(POD)
    result = invoke("-f", "pod.yaml")
    assert result.exit_code == 0
    assert "vram-enforcer" in result.stdout
    assert result.stderr.startswith("pod.yaml:1: Pod default/train: translated by rule ")


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ((), None),
        (("--runtime-class", "runc"), None),
        (("--runtime-class", "runc", "--runtime-class", "nvidia"), "nvidia"),
    ],
    ids=str,
)
def test_what_the_cluster_has_can_be_said(invoke, options, wanted):
    result = invoke("-f", "-", *options, stdin=POD)
    assert result.exit_code == 0
    assert read_yaml(result.stdout)[0]["spec"].get("runtimeClassName") == wanted


SLICED = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: sliced}
spec: {rules: [{name: sliced, accounting: MIG}]}
"""
SUMMARY = """\
standard input:1: Pod default/train: translated by rule sliced (8Gi on 1 GPU)
  resources   main nvidia.com/mig-1g.10gb: 1
  nodes       nvidia.com/mig-1g.10gb.memory of at least 8Gi
"""


def test_slices_that_the_cluster_has_can_be_said(invoke, tmp_path):
    (tmp_path / "sliced.yaml").write_text(SLICED)
    arguments = ("-f", "-", "--policy", "sliced.yaml", "-o", "summary")
    profiles = ("--mig-profile", "2g.20gb=19968Mi", "--mig-profile", "1g.10gb=9728Mi")
    allowed = invoke(*arguments, *profiles, stdin=POD)
    assert allowed.exit_code == 0
    assert allowed.stdout.startswith(SUMMARY)
    denied = invoke(*arguments, stdin=POD)
    assert denied.exit_code == 1
    assert "EnforcementImpossible" in denied.stdout


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("1g.10gb", '"1g.10gb" has no size of a slice: '),
        ("1g.10gb=8GB", '"1g.10gb=8GB" has no size of a slice: '),
        ("10gb=8Gi", '"10gb" is not the name of a profile; write e.g. 1g.10gb=9728Mi'),
    ],
)
def test_what_is_no_slice_is_wrong_usage(invoke, value, why):
    result = invoke("-f", "-", "--mig-profile", value, stdin=POD)
    assert result.exit_code == 2
    assert why in " ".join(result.stderr.split())


SEEING = """\
apiVersion: v1
kind: Pod
metadata: {name: seeing, namespace: team-a}
spec:
  containers:
  - name: main
    image: example
    env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]
"""


def test_what_a_rollout_that_observes_would_do_is_shown(invoke):
    denied = invoke("-f", "-", "--policy", "policy.yaml", stdin=SEEING)
    place = "standard input:8: Pod team-a/seeing: "
    assert denied.exit_code == 1
    assert denied.stderr.startswith(f"{place}denied: VisibleDevicesOverride: ")
    arguments = ("-f", "-", "--policy", "policy.yaml", "--rollout", "Observe")
    warned = invoke(*arguments, stdin=SEEING)
    assert (warned.exit_code, warned.stdout) == (0, SEEING)
    assert warned.stderr.startswith(f"{place}warning: VisibleDevicesOverride: ")
    assert invoke(*arguments[:-1], "observe", stdin=SEEING).exit_code == 2


def test_standard_input_namespace_and_policy_are_accepted(invoke):
    arguments = ("-f", "-", "--policy", "policy.yaml")
    assert "left alone (NoRule)" in invoke(*arguments, stdin=POD).stderr
    result = invoke(*arguments, "--namespace", "team-a", stdin=POD)
    verdict = "Pod team-a/train: translated by rule everyone (8Gi on 1 GPU)"
    assert result.stderr == f"standard input:1: {verdict}\n1 translated\n"


SIZE = "; write a size with its unit, e.g. {}"
COUNT = '; write a whole number in quotes, e.g. "1"'


@pytest.mark.parametrize(
    ("written", "kind", "memory", "count"),
    [
        ("2", "a number", SIZE.format("2Gi"), '; put it in quotes: "2"'),
        ("0.5", "a number", SIZE.format("512Mi"), COUNT),
        ("8e9", "a number", '; put it in quotes: "8000000000.0"', COUNT),
        ("8000000000", "a number", '; put it in quotes: "8000000000"', COUNT),
        ("0", "a number", SIZE.format("8Gi"), COUNT),
        ("-1", "a number", SIZE.format("8Gi"), COUNT),
        ("true", "a boolean", SIZE.format("8Gi"), COUNT),
        ("[8Gi]", "a list", "", ""),
        ("{}", "an object", "", ""),
    ],
)
@pytest.mark.parametrize("key", ["gpu-memory", "gpu-count"])
def test_what_yaml_takes_for_a_number_must_be_quoted(invoke, key, written, kind, memory, count):
    pod = POD.replace("vramwarden.io/gpu-memory: 8Gi", f"vramwarden.io/{key}: {written}")
    path = f"metadata.annotations[vramwarden.io/{key}]"
    result = invoke("-f", "-", stdin=pod)
    assert result.exit_code == 1
    # In quotes, the number would mean bytes or nothing, and would be denied again.
    why = f"{path}: must be a string, not {kind}{memory if key == 'gpu-memory' else count}"
    assert result.stderr == f"standard input:6: Pod default/train: denied: {why}\n1 denied\n"


RULE = "rule default (8Gi on 1 GPU)"


def test_what_the_api_server_alone_rejects_is_a_warning_and_the_rest_is_judged(invoke):
    labelled = POD.replace("  annotations:", "  labels: {a: 1}\n  annotations:")
    result = invoke("-f", "-", stdin=labelled)
    where = "standard input:{}: Pod default/train:".format
    why = 'metadata.labels[a]: must be a string, not a number; put it in quotes: "1"'
    assert result.stdout == labelled
    assert result.stderr.splitlines() == [
        f"{where(1)} translated by {RULE} once the API server accepts it, and printed as it is",
        f"{where(5)} warning: {why}; Kubernetes rejects that",
        "1 translated, 1 warning",
    ]
    wrong = invoke("-f", "-", stdin=labelled.replace("8Gi", "8GB"))
    assert wrong.exit_code == 1
    assert wrong.stderr.startswith(f"{where(7)} denied: InvalidQuantity: ")


def test_of_many_malformed_fields_each_is_told(invoke):
    env = "".join(f"    - {{name: A{n}, value: {n}}}\n" for n in range(3))
    text = f"{POD}    env:\n{env}    args: [1]\n".replace("- name: main\n   ", "-")
    result = invoke("-f", "-", stdin=text)
    said = [line.split(": ")[3] for line in result.stderr.splitlines()[1:-1]]
    place = "spec.containers[0]"
    fields = [f"{place}.env[{n}].value" for n in range(3)]
    assert (result.exit_code, said) == (0, [f"{place}.name", *fields])


def test_strict_fails_where_there_is_a_warning(invoke):
    texts = {
        "fine": POD,
        "a key that nothing reads": POD.replace("gpu-memory", "gpu-mem"),
        "a key of nobody": POD.replace("vramwarden.io", "vramwarden"),
        "a key at the wrong level": POD.replace("Pod", "PodTemplate")
        .replace("v1", "v1")
        .replace("spec:", "template:\n spec:"),
    }
    codes = [
        (
            invoke("-f", "-", stdin=text).exit_code,
            invoke("--strict", "-f", "-", stdin=text).exit_code,
        )
        for text in texts.values()
    ]
    assert codes == [(0, 0), (1, 1), (0, 1), (1, 1)]
    for name, failure in (
        ("a key that nothing reads", 'UnreadKey" message="metadata.annotations[vramwarden.io/'),
        ("a key of nobody", 'Warning" message="metadata.annotations[vramwarden/'),
    ):
        junit = invoke("--strict", "-f", "-", "-o", "junit", stdin=texts[name])
        assert f'<failure type="{failure}' in junit.stdout


@pytest.mark.parametrize(
    ("arguments", "stdin", "names"),
    [
        (("pod.yaml",), "", ["pod.yaml"]),
        (("pod.yaml", "more"), "", ["pod.yaml", "more/b.yaml"]),
        (("more", "-f", "pod.yaml", "-f", "-"), POD, ["pod.yaml", "standard input", "more/b.yaml"]),
        (("-",), POD, ["standard input"]),
        ((), POD, ["standard input"]),
    ],
    ids=str,
)
def test_files_are_named_as_arguments_or_by_f_or_piped_in(
    invoke, tmp_path, arguments, stdin, names
):
    (tmp_path / "pod.yaml").write_text(POD)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.yaml").write_text(POD)
    result = invoke(*arguments, stdin=stdin)
    verdict = "Pod default/train: translated by rule default (8Gi on 1 GPU)"
    *lines, tally = result.stderr.splitlines()
    assert (result.exit_code, lines) == (0, [f"{name}:1: {verdict}" for name in names])
    assert tally == f"{len(names)} translated"


@pytest.mark.parametrize("stdin", [Terminal(), None], ids=["terminal", "closed"])
def test_without_a_file_and_a_pipe_usage_says_what_to_write(invoke, stdin):
    result = invoke(stdin=stdin)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith(
        "Error: no manifest is named; write a file, as deployment.yaml, or - for standard input\n"
    )


def test_a_terminal_shows_the_summary_unless_another_form_is_chosen(invoke, tmp_path, monkeypatch):
    (tmp_path / "pod.yaml").write_text(POD)
    wanted = [invoke("pod.yaml", "-o", form) for form in ("summary", "yaml")]
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = [invoke("pod.yaml", *form) for form in ((), ("-o", "yaml"))]
    assert wanted[0].stdout.startswith("pod.yaml:1: Pod default/train: translated by rule ")
    assert shown == wanted


def test_a_folders_manifests_are_read_in_the_order_of_their_names(invoke, tmp_path):
    folder = tmp_path / "manifests"
    folder.mkdir()
    for name in ("c.json", "a.yaml", "b.yml", "d.txt", "e.yaml.bak"):
        (folder / name).write_text(f'{{"kind": "{name}"}}\n')
    (folder / "sub.yaml").mkdir()
    result = invoke("-f", "manifests", "-f", "policy.yaml")
    kinds = [line for line in result.stdout.splitlines() if "kind" in line]
    skipped = "manifests: subfolders are skipped (sub.yaml); -R reads them as well"
    assert result.stderr.splitlines()[0] == skipped
    assert kinds == ['{"kind": "a.yaml"}', '{"kind": "b.yml"}', '{"kind": "c.json"}',
                     "kind: VRAMPolicy"]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("-f", "absent.yaml"), "absent.yaml: cannot be read (No such file or directory); check"),
        (("-f", "empty"), "empty: no *.yaml, *.yml or *.json in it; name a folder"),
        (("-f", "latin.yaml"), "latin.yaml:2: byte 0xe9 is not UTF-8; save it as UTF-8"),
        (("-f", "bad.yaml"), "bad.yaml:2: not valid YAML"),
        (("-f", "-", "-o", "table"), "'table' is not one of"),
        (("-f", "-", "-n", "Bad NS!"), '"Bad NS!" can be no namespace: lower case letters, digits'),
        (("-f", "-", "-n", "a" * 64), "can be no namespace"),
        (("-f", "-", "--policy", "absent"), "'absent' does not exist"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_to_do(invoke, tmp_path, arguments, problem):
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: caf\xe9\n")
    (tmp_path / "bad.yaml").write_text("a:\n\t- b\n")
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert problem in result.stderr
    assert "Traceback" not in result.stderr


def test_an_address_says_how_it_is_read(invoke):
    result = invoke("-f", "https://example.com/a.yaml")
    assert result.exit_code == 2
    assert result.stderr.endswith(
        "https://example.com/a.yaml: addresses are not read; "
        "run: curl --location https://example.com/a.yaml | vramwarden admit -f -\n"
    )


def test_an_invalid_policy_ends_with_1(invoke, tmp_path):
    (tmp_path / "policy.yaml").write_text(ADMIT_POLICY + "    colour: red\n")
    result = invoke("-f", "-", "--policy", "policy.yaml", stdin=POD)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "colour" in result.stderr


@pytest.mark.process
@pytest.mark.parametrize("variables", [{"LC_ALL": "C", "PYTHONUTF8": "0"}, {}])
def test_a_real_pipe_gets_the_same_bytes_whatever_the_locale(variables):
    text = "kind: A # café 😀\r\n"
    tally = b"1 without a pod template (1 A)\n"
    program = "from webhook.tools.admit.command import admit_command; admit_command()"
    done = subprocess.run(
        [sys.executable, "-c", program, "-f", "-"],
        input=text.encode(),
        capture_output=True,
        env={**os.environ, **variables},
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, text.encode(), tally)


FORMS = [output for output in Output if output is not Output.GITHUB]


@pytest.mark.process
@pytest.mark.parametrize(
    ("pods", "output", "findings"),
    [
        *(pytest.param(1, form, True, id=f"{form}, at the end") for form in FORMS),
        *(pytest.param(20, form, True, id=f"{form}, in the middle") for form in FORMS),
        pytest.param(1, "yaml", False, id="nor is anybody there for the findings"),
    ],
)
def test_a_closed_pipe_is_not_reported_as_a_denial(tmp_path, pods, output, findings):
    """One pod fits in the buffer until the end; many pods break the pipe in between."""
    (tmp_path / "pods.yaml").write_text("---\n".join([POD] * pods))
    command = [sys.executable, "-m", "webhook.cli", "admit", "-f", "pods.yaml", "-o", output]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing) as closed:
        stderr = subprocess.PIPE if findings else closed
        done = subprocess.run(
            command, stdout=closed, stderr=stderr, text=True, cwd=tmp_path, check=False
        )
    assert done.returncode == 141
    assert "Traceback" not in (done.stderr or "")
    assert "Exception" not in (done.stderr or "")
