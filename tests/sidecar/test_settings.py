"""The enforcer's environment: valid values of each variable, and errors for all other values."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.pods import a_pod, a_policy, a_request, a_rule
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Phase
from webhook.core.enforcement.parameters import (
    BLIND_AFTER,
    GRACE,
    ON_EXCESS,
    POLL_INTERVAL,
    TOLERANCE,
)
from webhook.core.policy.cluster import UNKNOWN_CLUSTER
from webhook.core.policy.model import OnExcess
from webhook.sidecar.settings import EnforcerSettings, SettingsError, read_settings

CAP = 1_000_000_000
BOUNDS = {
    "VRAM_POLL_INTERVAL": ("poll_interval_s", 0.1, 60.0),
    "VRAM_GRACE": ("grace_s", 0.0, 3600.0),
    "VRAM_BLIND_AFTER": ("blind_after_s", 1.0, 3600.0),
}
MALFORMED = {
    "VRAM_CAP_BYTES": [
        "8Gi", "0", "-1", "+5", "1e9", "8.5", "0x10", "1_000", "1 000", "٣", "none", "inf",
        "9223372036854775808", "9" * 5000,
    ],
    "VRAM_TOLERANCE": [
        "%", "2 %", "-2%", "1e3%", "2.55%", "50.1%", "1000%", "256Mi", "-1", "none", "inf",
        "nan", "٣%", "9223372036854775808", "9" * 5000,
    ],
    "VRAM_POLL_INTERVAL": ["0s", "99ms", "61s", "1m1s", "-1s", "1d", "s", "1s2", "inf", "nan"],
    "VRAM_GRACE": ["-1s", "3601s", "1h1ms", "never", "1,5s", "9" * 400, "9" * 400 + "h"],
    "VRAM_BLIND_AFTER": ["3601s", "2h", "999ms", "0s", "-0s", "never", "1e9", "0x1s"],
    "VRAM_WHEN_BLIND": ["report", "TERMINATE", "Ignore", "Report,Terminate", "0"],
    "VRAM_ON_EXCESS": ["None", "report", "Ignore", "0"],
    "VRAM_DRIVER_LIMIT": ["auto", "Off", "Require,Auto", "true", "0"],
    "VRAM_GPUS": ["", " ", "\n"],
}  # fmt: skip
CASES = [(name, text) for name, texts in MALFORMED.items() for text in texts]
SAYS_WHAT_TO_WRITE = {
    "VRAM_CAP_BYTES": ["e.g. 8589934592"],
    "VRAM_TOLERANCE": ["e.g. 2%", "more than 50%; write less"],
    "VRAM_POLL_INTERVAL": ["e.g. 500ms", "between 0.1s and 60s"],
    "VRAM_GRACE": ["e.g. 500ms", "between 0s and 3600s"],
    "VRAM_BLIND_AFTER": ["e.g. 500ms", "between 1s and 3600s"],
    "VRAM_WHEN_BLIND": ["one of Report, Terminate"],
    "VRAM_ON_EXCESS": ["one of Stop, Report", "one of Report, Stop"],
    "VRAM_DRIVER_LIMIT": ["one of Auto, Require"],
    "VRAM_GPUS": ["is empty", "delete it, so that it is bound again"],
}
TEXTS = st.one_of(
    st.text(max_size=30),
    st.text(alphabet="0123456789.%-+eEhmsGiMk ", max_size=12),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(str),
    st.sampled_from([text for _, text in CASES]),
)


def settings(**environment):
    return read_settings({"VRAM_CAP_BYTES": str(CAP)} | environment)


def problems(environment):
    try:
        read_settings(environment)
    except SettingsError as error:
        return error.problems
    return ()


def test_only_the_cap_has_to_be_set_and_no_default_ever_changes_within_0_x():
    """Running pods depend on these defaults: another default needs another variable."""
    assert settings() == EnforcerSettings(
        cap_bytes=CAP,
        tolerance_bytes=CAP // 50,
        poll_interval_s=1.0,
        grace_s=5.0,
        blind_after_s=60.0,
        terminate_when_blind=False,
        gpus=None,
        stops_processes=True,
        driver_limit="",
    )
    assert (POLL_INTERVAL.default, GRACE.default, BLIND_AFTER.default) == ("1s", "5s", "60s")
    assert (TOLERANCE, ON_EXCESS[0]) == ("2%", "Stop")


@pytest.mark.parametrize("on_excess", sorted(OnExcess))
def test_a_policys_word_reaches_the_sidecar(on_excess):
    rule = a_rule(enforcement={"on_excess": on_excess})
    decision = decide(a_request(a_pod("8Gi")), a_policy(rule), UNKNOWN_CLUSTER, Phase.MUTATE)
    (enforcer,) = decision.obj["spec"]["initContainers"]
    environment = {
        variable["name"]: variable["value"] for variable in enforcer["env"] if "value" in variable
    }
    assert read_settings(environment).stops_processes is (on_excess is OnExcess.STOP)
    assert ("VRAM_ON_EXCESS" in environment) is (on_excess is OnExcess.REPORT)
    assert decide(a_request(decision.obj), a_policy(rule), UNKNOWN_CLUSTER, Phase.VALIDATE).allowed
    for other in sorted(OnExcess):
        policy = a_policy(a_rule(enforcement={"on_excess": other}))
        assert decide(a_request(decision.obj), policy, UNKNOWN_CLUSTER, Phase.MUTATE).allowed


@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_a_blank_variable_counts_as_absent(blank):
    names = MALFORMED.keys() - {"VRAM_CAP_BYTES", "VRAM_GPUS"}
    assert settings(**dict.fromkeys(names, blank)) == settings()


@pytest.mark.parametrize("environment", [{}, {"VRAM_CAP_BYTES": ""}, {"VRAM_CAP_BYTES": "  "}])
def test_no_cap_is_a_problem_and_not_no_limit(environment):
    (problem,) = problems(environment)
    assert problem.startswith("VRAM_CAP_BYTES: is not set; ")
    assert "e.g. 8589934592" in problem


READ = {
    "VRAM_CAP_BYTES": ("cap_bytes", {"1": 1, "8589934592": 2**33, str(2**63 - 1): 2**63 - 1}),
    "VRAM_TOLERANCE": (
        "tolerance_bytes",
        {
            "0%": 0, "2%": 20_000_000, "2.5%": 25_000_000, "002%": 20_000_000, "50%": 500_000_000,
            "0": 0, "1048576": 2**20, str(2**60): 2**60, str(2**63 - 1): 2**63 - 1,
        },
    ),
    "VRAM_WHEN_BLIND": ("terminate_when_blind", {"Report": False, "Terminate": True}),
    "VRAM_ON_EXCESS": ("stops_processes", {"Stop": True, "Report": False}),
    "VRAM_DRIVER_LIMIT": ("driver_limit", {"Auto": "Auto", " Require": "Require"}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "field", "want"),
    [(name, text, field, want) for name, (field, of) in READ.items() for text, want in of.items()],
)
def test_a_variable_is_read_as_what_it_says(name, text, field, want):
    assert getattr(settings(**{name: text}), field) == want


@given(st.integers(1, 2**63 - 1), st.integers(0, 500))
def test_a_share_is_exact_and_rounded_down(cap_bytes, tenths):
    text = f"{tenths // 10}.{tenths % 10}%"
    read = settings(VRAM_CAP_BYTES=str(cap_bytes), VRAM_TOLERANCE=text)
    assert 0 <= cap_bytes * tenths - read.tolerance_bytes * 1000 < 1000


@pytest.mark.parametrize("name", BOUNDS)
def test_durations_are_read_up_to_their_bounds(name):
    field, least_s, most_s = BOUNDS[name]
    for text, want_s in ((f"{least_s}s", least_s), (f"{most_s:g}", most_s), ("1s500ms", 1.5)):
        assert getattr(settings(**{name: text}), field) == want_s


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("GPU-a", {"GPU-a"}), (" GPU-a , GPU-8b1c-0 ", {"GPU-a", "GPU-8b1c-0"}), ("all", None),
        ("void", None), ("none", None), ("0,1", None), ("GPU-a,1", None), ("GPU-a,", None),
        ("MIG-5c1a", None), ("GPU-a;GPU-b", None),
    ],
)  # fmt: skip
def test_the_pods_own_gpus_are_told_by_uuid_and_anything_else_means_all_of_them(text, want):
    assert settings(VRAM_GPUS=text, NVIDIA_VISIBLE_DEVICES="GPU-b").gpus == want
    assert settings(NVIDIA_VISIBLE_DEVICES=text).gpus is None


@pytest.mark.parametrize(("name", "text"), CASES, ids=lambda text: text[:20])
def test_what_is_malformed_is_rejected_with_its_name_and_what_to_write(name, text):
    (problem,) = problems({"VRAM_CAP_BYTES": str(CAP), name: text})
    assert problem.startswith(f"{name}: ")
    assert any(words in problem for words in SAYS_WHAT_TO_WRITE[name]), problem


def test_all_problems_are_told_at_once():
    environment = {name: texts[0] for name, texts in MALFORMED.items()}
    found = problems(environment)
    assert sorted(problem.partition(":")[0] for problem in found) == sorted(MALFORMED)
    with pytest.raises(SettingsError) as caught:
        read_settings(environment)
    assert str(caught.value) == "; ".join(found)


def test_a_wrong_cap_does_not_make_a_right_tolerance_a_problem():
    (problem,) = problems({"VRAM_CAP_BYTES": "8Gi", "VRAM_TOLERANCE": "2%"})
    assert problem.startswith("VRAM_CAP_BYTES: ")


@given(TEXTS)
@example("999.9%")
def test_no_tolerance_is_read_as_more_than_it_says(text):
    try:
        tolerance_bytes = settings(VRAM_TOLERANCE=text).tolerance_bytes
    except SettingsError:
        return
    if text.strip().isdigit():
        assert tolerance_bytes == int(text)
    else:
        assert not text.strip() or text.strip().endswith("%")
        assert 0 <= tolerance_bytes <= CAP // 2


@given(TEXTS)
def test_no_cap_is_read_as_anything_but_its_own_figures(text):
    try:
        cap_bytes = settings(VRAM_CAP_BYTES=text).cap_bytes
    except SettingsError:
        return
    assert 0 < cap_bytes == int(text.strip()) < 2**63
    assert text.strip().isascii()
    assert text.strip().isdigit()


@given(st.sampled_from(sorted(BOUNDS)), TEXTS)
def test_no_duration_is_read_outside_its_bounds(name, text):
    field, least_s, most_s = BOUNDS[name]
    try:
        value_s = getattr(settings(**{name: text}), field)
    except SettingsError:
        return
    assert least_s <= value_s <= most_s


@given(st.dictionaries(st.sampled_from([*MALFORMED, "NVIDIA_VISIBLE_DEVICES"]), TEXTS))
def test_whatever_is_set_there_are_settings_or_problems_that_name_their_variables(environment):
    found = problems(environment)
    names = [problem.partition(":")[0] for problem in found]
    assert len(set(names)) == len(names)
    assert set(names) <= {*environment, "VRAM_CAP_BYTES"}
