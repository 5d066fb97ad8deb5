"""Fields of a policy as they arrive in the enforcer of a pod."""

import re
from fractions import Fraction

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.sidecar.parts import SHIPPED, load, load_spec
from tests.support.pods import a_pod, a_policy, a_request, a_rule
from tests.support.strategies import asking_pods
from webhook.adapters.policy.files import PolicyInvalidError
from webhook.cli.enforcement import enforce_command
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.nvidia.variables import VISIBLE_DEVICES_ENV
from webhook.core.pod.demand import read_demand
from webhook.core.pod.duration import parse_ms
from webhook.core.pod.quantity import parse_quantity
from webhook.core.pod.views import read_pod
from webhook.core.policy.cluster import UNKNOWN_CLUSTER
from webhook.core.policy.model import EnforceBy
from webhook.names import (
    CAP_BYTES_ENV,
    DRIVER_LIMIT_ANNOTATION,
    DRIVER_LIMIT_ENV,
    ENFORCER_CONTAINER,
    GPU_ANNOTATION,
    GPU_MEMORY_FRACTION_ANNOTATION,
    GPUS_ENV,
    ON_EXCESS_ENV,
    VISIBLE_DEVICES_ANNOTATION,
)
from webhook.sidecar.settings import SettingsError, read_settings

NUMBERS = st.integers(0, 4000).map(str) | st.decimals(0, 99, places=2).map(str)
PARTS = st.tuples(NUMBERS, st.sampled_from(["ms", "s", "m", "h"])).map("".join)
DURATIONS = st.lists(PARTS, min_size=1, max_size=3).map("".join)
SIZES = st.tuples(
    NUMBERS | st.integers(0, 2**64).map(str),
    st.sampled_from(["", "Mi", "Gi", "M", "G", "Ki", "Ei", "E", "e6", "e18"]),
).map("".join)
TOLERANCES = (
    SIZES | st.integers(0, 60).map("{}%".format) | st.decimals(0, 60, places=1).map("{}%".format)
)
ENFORCEMENT = st.fixed_dictionaries(
    {
        "pollInterval": DURATIONS | st.sampled_from(["100ms", "60s", "1m"]),
        "grace": DURATIONS | st.sampled_from(["0s", "1h", "60m"]),
        "blindAfter": DURATIONS | st.sampled_from(["1s", "1h", "1000ms"]),
        "tolerance": TOLERANCES,
        "whenBlind": st.sampled_from(["Report", "Terminate"]),
    }
)
LONGEST = {
    "pollInterval": "60s",
    "grace": "1h",
    "blindAfter": "1h",
    "tolerance": str(2**63 - 1),
    "whenBlind": "Terminate",
}


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("policy")


def policy_of(folder, fields, rule=""):
    """Load a policy with one rule, without fields that no policy may have."""
    kept = {}
    for name, text in fields.items():
        try:
            load_spec(folder, _spec({name: text}))
        except PolicyInvalidError:
            continue
        kept[name] = text
    return load_spec(folder, _spec(kept) + rule), kept


def _spec(fields):
    lines = "".join(f"      {name}: '{text}'\n" for name, text in fields.items())
    return f"  rules:\n  - name: a\n    enforcement:\n{lines or '      by: Sidecar'}\n"


def environment(policy, pod, gpus="GPU-a"):
    """Return the enforcer's environment as the kubelet sets it, with the GPUs chosen at binding."""
    decision = decide(a_request(pod), policy, UNKNOWN_CLUSTER, Phase.MUTATE)
    assert decision.outcome is Outcome.MUTATED, decision.message
    (container,) = (
        container
        for field in ("initContainers", "containers")
        for container in decision.obj["spec"].get(field) or ()
        if container["name"] == ENFORCER_CONTAINER
    )
    return {entry["name"]: _value(entry, gpus) for entry in container["env"]}


def _value(entry, gpus):
    if "valueFrom" not in entry:
        return entry["value"]
    path = entry["valueFrom"]["fieldRef"]["fieldPath"]
    if entry["name"] == VISIBLE_DEVICES_ENV:
        assert path == f"metadata.annotations['{VISIBLE_DEVICES_ANNOTATION}']"
        return "runtime.nvidia.com/gpu=0"  # one of the ways in which a node may name devices
    key = path.removeprefix("metadata.annotations['").removesuffix("']")
    written = {DRIVER_LIMIT_ANNOTATION: "", GPU_MEMORY_FRACTION_ANNOTATION: "0.5"}
    return {GPU_ANNOTATION: gpus, **written}[key]


def assert_same(settings, fields, cap_bytes):
    assert settings.cap_bytes == cap_bytes
    for name, value_s in (
        ("pollInterval", settings.poll_interval_s),
        ("grace", settings.grace_s),
        ("blindAfter", settings.blind_after_s),
    ):
        if name in fields:
            assert value_s * 1000 == pytest.approx(parse_ms(fields[name]))
    assert settings.terminate_when_blind is (fields.get("whenBlind") == "Terminate")
    tolerance = fields.get("tolerance", "2%")
    if tolerance.endswith("%"):
        assert settings.tolerance_bytes == int(cap_bytes * Fraction(tolerance[:-1]) / 100)
    else:
        assert settings.tolerance_bytes == parse_quantity(tolerance)


def test_every_variable_that_a_policy_sets_is_compared_here(policy_folder):
    policy, _ = policy_of(policy_folder, LONGEST)
    sent = {name for name in environment(policy, a_pod("8Gi")) if name.startswith("VRAM_")}
    fields = {"VRAM_" + re.sub("([A-Z])", r"_\1", name).upper() for name in LONGEST}
    assert sent - {CAP_BYTES_ENV, GPUS_ENV, DRIVER_LIMIT_ENV} == fields, (
        "add rows to ENFORCEMENT, LONGEST and assert_same"
    )
    assert set(re.findall("VRAM_[A-Z_]+", enforce_command.help)) == sent | {ON_EXCESS_ENV}


@given(ENFORCEMENT)
@example(LONGEST)
def test_whatever_a_policy_accepts_the_enforcer_reads_as_the_same(policy_folder, fields):
    policy, kept = policy_of(policy_folder, fields)
    assume(len(kept) > 1)
    settings = read_settings(environment(policy, a_pod("8Gi")))
    assert_same(settings, kept, 8 * 2**30)


@pytest.mark.parametrize(
    ("field", "variable"),
    [
        ("pollInterval", "VRAM_POLL_INTERVAL"),
        ("grace", "VRAM_GRACE"),
        ("blindAfter", "VRAM_BLIND_AFTER"),
    ],
)
@pytest.mark.parametrize(
    "text",
    ["0s", "99ms", "100ms", "999ms", "1s", "60s", "60001ms", "1h", "3600001ms", "24h", "25h"],
)
def test_policies_and_the_enforcer_have_the_same_bounds(policy_folder, field, variable, text):
    _, kept = policy_of(policy_folder, {field: text})
    try:
        read_settings({"VRAM_CAP_BYTES": "1", variable: text})
    except SettingsError:
        assert not kept
    else:
        assert kept


def test_the_largest_of_everything_is_accepted_by_policies(policy_folder):
    assert policy_of(policy_folder, LONGEST)[1] == LONGEST


@given(asking_pods())
def test_whatever_a_pod_asks_for_is_the_enforcers_cap(policy_folder, pod):
    policy, _ = policy_of(policy_folder, {})
    demand, findings = read_demand(read_pod(pod))
    assert findings == ()
    assert_same(read_settings(environment(policy, pod)), {}, demand.per_gpu_bytes)


def test_a_policy_that_says_nothing_of_it_gets_the_enforcers_own_defaults(policy_folder):
    policy, _ = policy_of(policy_folder, {})
    written = environment(policy, a_pod("8Gi"))
    alone = {name: written[name] for name in (CAP_BYTES_ENV, GPUS_ENV)}
    assert read_settings(written) == read_settings(alone)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda path: path.stem)
def test_the_enforcer_understands_every_shipped_policy(file):
    for rule in load(file).rules:
        if rule.enforcement.by is not EnforceBy.SIDECAR:
            continue
        policy = a_policy(a_rule(enforcement=rule.enforcement))
        pod = a_pod("8Gi", securityContext={"runAsUser": 1000})
        assert read_settings(environment(policy, pod)).cap_bytes == 8 * 2**30


@pytest.mark.parametrize(
    ("placement", "gpus", "want"),
    [
        ("Binding", "GPU-a", {"GPU-a"}),
        ("Binding", "GPU-a,GPU-b", {"GPU-a", "GPU-b"}),
        ("None", "GPU-a", None),
    ],
)
def test_the_gpus_given_at_binding_are_the_ones_that_are_measured(
    placement, gpus, want, policy_folder
):
    policy, _ = policy_of(policy_folder, {}, f"    placement: {placement}\n")
    assert read_settings(environment(policy, a_pod("8Gi"), gpus)).gpus == want
