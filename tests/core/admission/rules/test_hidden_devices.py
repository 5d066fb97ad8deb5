"""Fields that hide a pod's GPU: warnings with advice, and no warning about correct pods."""

from __future__ import annotations

import pytest

from tests.core.admission.decisions import decide_pod
from tests.support.follow_advice import followed
from tests.support.pods import a_container, a_pod, a_rule
from webhook.core.admission.decision import Outcome
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.model import Accounting, EnforceBy, Placement
from webhook.names import NVIDIA_RUNTIME_CLASS

CUDA, CAPABILITIES = "CUDA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"
UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
SEES_ALL = a_rule(placement=Placement.NONE, enforcement={"by": EnforceBy.NONE})
WITH_NVIDIA = Cluster(runtime_classes=frozenset({NVIDIA_RUNTIME_CLASS}))


def variable(name, value):
    return {"name": name} if value is None else {"name": name, "value": value}


def with_env(name, value, gpus=1, **fields):
    entry = variable(name, value)
    containers = [a_container(env=[variable("LOG", "1"), entry], **fields)]
    return a_pod("8Gi", containers=containers, annotations={"vramwarden.io/gpu-count": str(gpus)})


def notes(pod, rule=None, cluster=None):
    decision = decide_pod(pod, rule or a_rule(), **({"cluster": cluster} if cluster else {}))
    assert (decision.outcome, decision.findings) == (Outcome.MUTATED, ())
    assert all(len(note) <= 256 for note in decision.notes)
    return decision.notes


def assert_cured(pod, note, rule=None, cluster=None):
    """Apply a warning's advice and judge the pod again. No warning may remain."""
    path, _, detail = note.partition(": ")
    (again,) = followed(pod, path, detail)
    assert notes(again, rule, cluster) == ()


ENV = "spec.containers[0].env[1]"
AT_BINDING = "the GPU is chosen when the pod is bound to a node, so no UUID written here fits"


@pytest.mark.parametrize(
    ("value", "gpus", "why"),
    [
        ("1", 1, "inside the pod GPUs are numbered from 0, and it has no GPU 1"),
        ("7", 1, "inside the pod GPUs are numbered from 0, and it has no GPU 7"),
        ("0,1", 1, "inside the pod GPUs are numbered from 0, and it has no GPU 1"),
        (" 0, 2 ", 2, "inside the pod GPUs are numbered from 0, and it has no GPU 2"),
        ("0,1,2,3,4,5,6,7", 4, "inside the pod GPUs are numbered from 0, and it has no GPU 4"),
        ("1gpu", 1, "inside the pod GPUs are numbered from 0, and it has no GPU 1"),
        ("-1", 1, '"-1" is no GPU\'s number, so CUDA finds no GPU'),
        ("-1,0", 2, '"-1" is no GPU\'s number, so CUDA finds no GPU'),
        ("", 1, "it is empty, so CUDA finds no GPU"),
        (None, 1, "it is empty, so CUDA finds no GPU"),
        (",0", 1, "it is empty, so CUDA finds no GPU"),
        ("all", 1, '"all" is no GPU\'s number, so CUDA finds no GPU'),
        ("none", 1, '"none" is no GPU\'s number, so CUDA finds no GPU'),
        ("cuda:0", 1, '"cuda:0" is no GPU\'s number, so CUDA finds no GPU'),
        ("$GPU", 1, '"$GPU" is no GPU\'s number, so CUDA finds no GPU'),
        ("0,0", 2, 'it names "0" twice, so CUDA finds no GPU'),
        (UUID, 1, AT_BINDING),
        ("GPU-8932", 1, AT_BINDING),
        (f"0,{UUID}", 2, AT_BINDING),
        ("MIG-GPU-8932f937/1/0", 1, AT_BINDING),
    ],
)
def test_gpus_that_the_pod_does_not_have_are_warned_of(value, gpus, why):
    pod = with_env(CUDA, value, gpus)
    (note,) = notes(pod)
    assert note == f"{ENV}: remove it; {why}"
    assert_cured(pod, note)


@pytest.mark.parametrize(
    ("value", "gpus"),
    [
        ("0", 1), (" 0 ", 1), ("0,1", 2), ("1,0", 2), ("1", 2), ("0", 2), ("0,-1", 1), ("0,", 1),
        ("$(GPUS)", 1), ("0,$(GPUS)", 1), ("9" * 257, 1),
    ],
)  # fmt: skip
def test_right_and_unknown_values_earn_no_warning(value, gpus):
    assert notes(with_env(CUDA, value, gpus)) == ()


NUMBERED = "inside the pod GPUs are numbered from 0, and it has no GPU"
SHELL = ["sh", "-c"]


@pytest.mark.parametrize(
    ("words", "field", "text", "why"),
    [
        (["env", f"{CUDA}=1", "train"], "command[1]", f"{CUDA}=1", f"{NUMBERED} 1"),
        (["env", "A=b", f"{CUDA}=0,3", "x"], "command[2]", f"{CUDA}=0,3", f"{NUMBERED} 3"),
        ([*SHELL, f"{CUDA}=1 python a.py"], "command[2]", f"{CUDA}=1", f"{NUMBERED} 1"),
        ([*SHELL, f'export {CUDA}="1"; a'], "command[2]", f'{CUDA}="1"', f"{NUMBERED} 1"),
        ([*SHELL, f"export {CUDA}='2'\nb"], "command[2]", f"{CUDA}='2'", f"{NUMBERED} 2"),
        ([*SHELL, f"(cd x && {CUDA}=4)"], "command[2]", f"{CUDA}=4", f"{NUMBERED} 4"),
        ([*SHELL, f"{CUDA}=0 a & {CUDA}=1 b&"], "command[2]", f"{CUDA}=1", f"{NUMBERED} 1"),
        ([*SHELL, f"{CUDA}={UUID} a"], "command[2]", f"{CUDA}={UUID}", AT_BINDING),
        ([*SHELL, f"{CUDA}=GPU-1 a"], "command[2]", f"{CUDA}=GPU-1", AT_BINDING),
        (
            [*SHELL, f"{CUDA}=0,0 a"],
            "command[2]",
            f"{CUDA}=0,0",
            'it names "0" twice, so CUDA finds no GPU',
        ),
    ],
)
def test_gpus_that_a_command_line_chooses_are_warned_of(words, field, text, why):
    pod = a_pod("8Gi", containers=[a_container(command=words)])
    (note,) = notes(pod)
    assert note == f"spec.containers[0].{field}: remove {text}; {why}"
    assert_cured(pod, note)


@pytest.mark.parametrize(
    "line",
    [
        *(f"{CUDA}={value} a" for value in ("0", "", '""', "-1", "$GPU", "${1}", "$(GPUS)", "`x`")),
        *(f"{CUDA}={value} a" for value in ("0,-1", "all", "1$GPU", "$GPU,1")),
        *(f"MY_{CUDA}=1 a", f"# {CUDA}=1", f"echo {CUDA} = 1", f"{CUDA}x=1"),
    ],
)
def test_right_unknown_and_deliberate_values_in_a_command_line_earn_no_warning(line):
    pod = a_pod("8Gi", containers=[a_container(command=["sh", "-c", line])])
    assert notes(pod) == ()
    assert notes(a_pod("8Gi", containers=[a_container(args=["x"] * 2 + [f"{CUDA}=$X"])])) == ()


def test_a_command_line_of_a_container_without_vram_is_not_judged():
    other = a_container("proxy", command=["env", f"{CUDA}=1", "x"])
    assert notes(a_pod("main=8Gi", containers=[a_container("main"), other])) == ()


def test_a_value_from_elsewhere_earns_no_warning():
    env = [{"name": CUDA, "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]
    assert notes(a_pod("8Gi", containers=[a_container(env=env)])) == ()


def test_only_containers_with_vram_are_judged():
    hides = [variable(CUDA, ""), variable(CAPABILITIES, "utility")]
    containers = [a_container("main"), a_container("proxy", env=hides)]
    assert notes(a_pod("main=8Gi", containers=containers)) == ()
    assert decide_pod(a_pod(containers=containers)).notes == ()
    found = notes(a_pod("main=1Gi,proxy=1Gi", containers=containers))
    assert [note.partition(": ")[0] for note in found] == [
        "spec.containers[1].env[0]",
        "spec.containers[1].env[1].value",
    ]
    first = a_container("fetch", env=[variable(CUDA, "3")])
    (note,) = notes(a_pod("fetch=1Gi,main=8Gi", containers=containers[:1], initContainers=[first]))
    assert note.startswith("spec.initContainers[0].env[0]: remove it")


@pytest.mark.parametrize("value", ["1", "3", UUID, f"{UUID},MIG-1"])
def test_a_pod_that_sees_all_gpus_of_its_node_may_choose(value):
    assert notes(with_env(CUDA, value), SEES_ALL) == ()


@pytest.mark.parametrize("value", ["-1", "", "all", "2,2", f"{UUID},{UUID}"])
def test_what_hides_all_of_them_is_warned_of_there_too(value):
    pod = with_env(CUDA, value)
    (note,) = notes(pod, SEES_ALL)
    assert_cured(pod, note, SEES_ALL)


def test_a_slot_of_the_plugin_is_number_0_too():
    rule = a_rule(accounting=Accounting.CAP_ONLY, placement=Placement.NONE)
    of_plugin = {f"{ENV}: remove it; inside the pod GPUs are numbered from 0, and it has no GPU 1"}
    assert of_plugin <= {*notes(with_env(CUDA, "1"), rule)}
    assert not of_plugin & {*notes(with_env(CUDA, "0"), rule)}


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("graphics", "compute,graphics"),
        ("utility", "compute,utility"),
        ("video, utility", "compute,utility,video"),
        ("graphics,display", "compute,graphics,display"),
        ("void", "compute"),
        ("x\x1b[2J" * 30, "compute"),
    ],
)
def test_libraries_without_cuda_are_warned_of(value, line):
    pod = with_env(CAPABILITIES, value)
    (note,) = notes(pod)
    assert note == f"{ENV}.value: write {line}; without compute CUDA does not work"
    assert_cured(pod, note)


@pytest.mark.parametrize(
    "value",
    ["", " ", ",", "all", "compute", "compute,utility", "graphics, compute", "utility,all", "$(X)"],
)
def test_libraries_with_cuda_earn_no_warning(value):
    assert notes(with_env(CAPABILITIES, value)) == ()


def test_no_more_warnings_are_written_than_anybody_reads():
    env = [variable(CUDA, "1")] * 30
    assert len(notes(a_pod("8Gi", containers=[a_container(env=env)]))) == 10


SETS_IF = '; rule "default" sets nvidia if the cluster has it'


@pytest.mark.parametrize(
    "name",
    [
        *("kata", "kata-qemu", "kata-fc", "katacontainers", "kata-qemu-nvidia-gpu", "my-kata"),
        *("gvisor", "runsc", "gvisor-kvm", "wasmtime", "wasmedge", "wasmtime-spin-v2", "crun-wasm"),
        *("youki", "sysbox-runc", "firecracker", "team.kata"),
    ],
)
def test_a_runtime_that_shows_no_share_is_warned_of(name):
    rule = a_rule(runtime_class_name="Auto")
    pod = a_pod("8Gi", runtimeClassName=name)
    (note,) = notes(pod, rule)
    shows = f'spec.runtimeClassName: remove it; "{name}" shows no share of a GPU'
    assert note == shows + SETS_IF
    assert_cured(pod, note, rule)
    assert notes(pod, a_rule(runtime_class_name=None)) == (shows,)
    assert notes(pod, a_rule(runtime_class_name="gpu")) == (f'{shows}; rule "default" sets gpu',)
    found = notes(pod, rule, WITH_NVIDIA)
    assert found == (f'{shows}; rule "default" sets nvidia',)
    assert_cured(pod, found[0], rule, WITH_NVIDIA)


@pytest.mark.parametrize("name", ["runc", "crun"])
def test_a_plain_runtime_is_warned_of_where_the_rule_sets_another(name):
    pod, rule = a_pod("8Gi", runtimeClassName=name), a_rule(runtime_class_name="Auto")
    assert notes(pod, rule) == ()
    (note,) = notes(pod, rule, WITH_NVIDIA)
    assert note.endswith(f'remove it; "{name}" shows no share of a GPU; rule "default" sets nvidia')
    assert_cured(pod, note, rule, WITH_NVIDIA)


@pytest.mark.parametrize(
    "name", ["nvidia", "nvidia-cdi", "nvidia-legacy", "gpu", "katalog", "swasm", "runscope", ""]
)
def test_other_runtimes_earn_no_warning(name):
    assert notes(a_pod("8Gi", runtimeClassName=name), a_rule(runtime_class_name="Auto")) == ()


def test_the_runtime_of_the_rule_earns_no_warning_nor_does_a_pod_without_a_demand():
    rule = a_rule(runtime_class_name="kata-gpu")
    assert notes(a_pod("8Gi", runtimeClassName="kata-gpu"), rule) == ()
    assert decide_pod(a_pod(runtimeClassName="kata")).notes == ()


def test_the_longest_name_fits():
    (note,) = notes(a_pod("8Gi", runtimeClassName="kata." + "k" * 248))
    assert "…" in note
