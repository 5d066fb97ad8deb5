"""The alerts: what they ask for exists, and each fires where it should and nowhere else."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.chart.metrics import asked_of, known_metrics, unknown
from tests.support.charts import DEPLOY, one

RUNBOOK = DEPLOY / "alerts.md"
POD = '{node="n1",gpu="0",uuid="gpu-1",namespace="team",pod="p"}'
OTHERS = POD.replace('"team"', '"_other"').replace('"p"', '"_other"')
GPU = '{node="n1",gpu="0",uuid="gpu-1"}'
BUCKET = 'vramwarden_admission_duration_seconds_bucket{webhook="mutate",le="%s"}'
DAY_S = 86400
CA_EXPIRY = 'vramwarden_certificate_expiry_timestamp_seconds{role="ca"}'
ACTING = 'kube_node_status_condition{condition="vramwarden.io/SentryActing",'
NAMED = {"namespace": "team", "pod": "p"}

CASES = {
    "VramwardenUnreachable": (
        {},
        {
            'apiserver_admission_webhook_rejection_count{name="mutate.vramwarden.io",'
            'error_type="calling_webhook_error"}': "0+1x60"
        },
        {
            'apiserver_admission_webhook_rejection_count{name="mutate.other.io",'
            'error_type="calling_webhook_error"}': "0+1x60",
            'apiserver_admission_webhook_rejection_count{name="mutate.vramwarden.io",'
            'error_type="no_error"}': "0+1x60",
        },
    ),
    "VramwardenBypassed": (
        {},
        {
            "apiserver_admission_webhook_fail_open_count"
            '{name="validate.vramwarden.io"}': "0x55 1x30",
        },
        {'apiserver_admission_webhook_fail_open_count{name="bind.vramwarden.io"}': "0x55 1x30"},
    ),
    "VramwardenFails": (
        {},
        {'vramwarden_admission_requests_total{reason="InternalError"}': "0x55 1x30"},
        {'vramwarden_admission_requests_total{reason="TooLarge"}': "0x55 1x30"},
    ),
    "VramwardenPatchWrong": (
        {},
        {'vramwarden_patch_checks_total{result="failed"}': "0x55 1x30"},
        {'vramwarden_patch_checks_total{result="passed"}': "0+9x90"},
    ),
    "VramwardenSlow": (
        {},
        {BUCKET % "0.1": "0+90x90", BUCKET % "0.25": "0+100x90", BUCKET % "+Inf": "0+100x90"},
        {BUCKET % "0.1": "0+995x90", BUCKET % "0.25": "0+1000x90", BUCKET % "+Inf": "0+1000x90"},
    ),
    "VramwardenPlacementBlind": (
        {"resource": "pods"},
        {'vramwarden_placement_watch_failed{resource="pods"}': "1x90"},
        {'vramwarden_placement_watch_failed{resource="pods"}': "0x55 1x30"},
    ),
    "VramwardenUnmanagedMemory": (
        {"node": "n1", "gpu": "0", "pod_uid": "u"},
        {
            'vramwarden_gpu_memory_unmanaged_bytes{node="n1",gpu="0",pod_uid="u"}': (
                f"{300 * 2**20}x90"
            )
        },
        {
            'vramwarden_gpu_memory_unmanaged_bytes{node="n1",gpu="0",pod_uid="u"}': (
                f"{200 * 2**20}x90"
            )
        },
    ),
    "VramwardenSentryStops": (
        {"node": "n1"},
        {'vramwarden_sentry_stops_total{enforcer="Sidecar",node="n1",target="pod"}': "0x55 1x30"},
        {
            'vramwarden_sentry_stops_total{enforcer="Sidecar",node="n1",target="pod"}': "0x10 1x90",
            'vramwarden_sentry_stops_total{enforcer="Sentry",node="n1",target="pod"}': "0x55 1x30",
        },
    ),
    "VramwardenOverpromised": (
        {"node": "n1", "gpu": "0"},
        {
            f"vramwarden_gpu_memory_promised_bytes{GPU}": "101x90",
            f"vramwarden_gpu_memory_usable_bytes{GPU}": "100x90",
        },
        {
            f"vramwarden_gpu_memory_promised_bytes{GPU}": "100x58 101x30",
            f"vramwarden_gpu_memory_usable_bytes{GPU}": "100x90",
        },
    ),
    "VramwardenSentryStale": (
        {"node": "n1"},
        {'vramwarden_sentry_last_scan_timestamp_seconds{node="n1"}': "3000x90"},
        {'vramwarden_sentry_last_scan_timestamp_seconds{node="n1"}': "0+60x90"},
    ),
    "VramwardenSentryDown": (
        {"namespace": "ours", "pod": "a"},
        {'up{job="ours/vramwarden-sentry",namespace="ours",pod="a"}': "0x90"},
        {
            'up{job="ours/vramwarden-sentry",namespace="ours",pod="a"}': "1x52 0x30",
            'up{job="ours/vramwarden-sentry",namespace="ours",pod="gone"}': "0x40 stale",
            'up{job="vramwarden-webhook",namespace="ours",pod="b"}': "0x90",
        },
    ),
    "VramwardenSentryAbsent": (
        {"node": "n1"},
        {f'{ACTING}node="n1",status="false"}}': "0x55 1x30"},
        {
            f'{ACTING}node="n1",status="true"}}': "1x90",
            f'{ACTING}node="n1",status="false"}}': "1x55 0x30",
            'kube_node_status_condition{condition="Ready",node="n1",status="false"}': "1x90",
        },
    ),
    "VramwardenPodStopped": (
        NAMED,
        {'vramwarden_pod_stops_total{node="n1",namespace="team",pod="p"}': "0x55 1x30"},
        {'vramwarden_pod_stops_total{node="n1",namespace="team",pod="p"}': "0x10 1x90"},
    ),
    "VramwardenPodNearCap": (
        NAMED,
        {
            f"vramwarden_pod_memory_used_bytes{POD}": "96x90",
            f"vramwarden_pod_memory_cap_bytes{POD}": "100x90",
        },
        {
            f"vramwarden_pod_memory_used_bytes{POD}": "95x50 99x40",
            f"vramwarden_pod_memory_cap_bytes{POD}": "100x90",
            f"vramwarden_pod_memory_used_bytes{OTHERS}": "99x90",
            f"vramwarden_pod_memory_cap_bytes{OTHERS}": "100x90",
        },
    ),
    "VramwardenIdlePromise": (
        NAMED,
        {
            f"vramwarden_pod_memory_used_bytes{POD}": "9x500",
            f"vramwarden_pod_memory_cap_bytes{POD}": "100x500",
        },
        {
            f"vramwarden_pod_memory_used_bytes{POD}": "9x200 10 9x300",
            f"vramwarden_pod_memory_cap_bytes{POD}": "100x500",
            f"vramwarden_pod_memory_used_bytes{OTHERS}": "1x500",
            f"vramwarden_pod_memory_cap_bytes{OTHERS}": "100x500",
        },
    ),
    "VramwardenPolicyInvalid": (
        {},
        {"vramwarden_policy_stale": "1x90"},
        {"vramwarden_policy_stale": "1x50 0x30"},
    ),
    "VramwardenPolicyEmpty": (
        {},
        {"vramwarden_policy_rules": "0x90"},
        {'vramwarden_policy_rules{pod="a"}': "0x90", 'vramwarden_policy_rules{pod="b"}': "3x90"},
    ),
    "VramwardenPoliciesDiffer": (
        {},
        {
            'vramwarden_policy_info{pod="a",digest="1"}': "1x90",
            'vramwarden_policy_info{pod="b",digest="2"}': "1x90",
        },
        {
            'vramwarden_policy_info{pod="a",digest="1"}': "1x90",
            'vramwarden_policy_info{pod="b",digest="1"}': "1x90",
        },
    ),
    "VramwardenCertificateExpires": (
        {"role": "serving"},
        {
            'vramwarden_certificate_expiry_timestamp_seconds{role="serving"}': f"{DAY_S}x500",
            CA_EXPIRY: f"{90 * DAY_S}x500",
        },
        {'vramwarden_certificate_expiry_timestamp_seconds{role="serving"}': f"{8 * DAY_S}x500"},
    ),
    "VramwardenCAExpires": (
        {},
        {CA_EXPIRY: f"{364 * DAY_S}x500", "vramwarden_ca_bundle_published": "1x500"},
        {CA_EXPIRY: f"{364 * DAY_S}x500"},
    ),
    "VramwardenCABundleWrong": (
        {},
        {
            'vramwarden_ca_bundle_published{pod="a"}': "0x90",
            "vramwarden_ca_bundle_published": "1x90",
        },
        {"vramwarden_ca_bundle_published": "1x90"},
    ),
}
"""By alert: the labels with which it fires, series with which it does, series with which not."""


@pytest.fixture(scope="module")
def groups(helm):
    values = {"prometheusRule": {"enabled": True}}
    return one(helm.render(values), "PrometheusRule")["spec"]["groups"]


@pytest.fixture(scope="module")
def rules(groups):
    return [rule for group in groups for rule in group["rules"]]


def test_every_metric_and_label_of_an_alert_exists(rules):
    known = known_metrics()
    assert len({metric for rule in rules for metric, _ in asked_of(rule["expr"])}) > 12
    for rule in rules:
        name = rule["alert"]
        ours = asked_of(rule["expr"])
        assert ours or re.search(r"\bapiserver_|\bup\{|\bkube_node_", rule["expr"]), name
        if ours:
            assert unknown(rule["expr"], known) == [], name


def test_alerts_name_nobody_in_their_sentence_and_say_how_bad_it_is(rules):
    for rule in rules:
        name = rule["alert"]
        assert re.fullmatch("Vramwarden[A-Z][A-Za-z]+", name)
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}, name
        assert rule["annotations"]["summary"][-1] in ".?", name


def test_every_alert_leads_to_its_section_where_the_page_is_known(helm, rules):
    assert all("runbook_url" not in rule["annotations"] for rule in rules)
    url = "https://git.example/blob/main/{page}.md"
    values = {"prometheusRule": {"enabled": True}, "documentationURL": url}
    (group,) = one(helm.render(values), "PrometheusRule")["spec"]["groups"]
    # As GitHub and the site call a heading.
    sections = re.findall(r"^## (\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert {rule["alert"]: rule["annotations"].pop("runbook_url") for rule in group["rules"]} == {
        name: f"https://git.example/blob/main/deploy/alerts.md#{name.lower()}" for name in sections
    }
    assert group["rules"] == rules


def test_every_alert_is_played(rules):
    assert list(CASES) == list(dict.fromkeys(rule["alert"] for rule in rules))


def test_prometheus_can_read_the_rules(promtool, groups):
    files = {"rules.yaml": yaml.safe_dump({"groups": groups})}
    code, said = promtool("check", "rules", "--lint=all", "rules.yaml", files=files)
    assert code == 0, said


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_where_it_should_and_nowhere_else(promtool, groups, rules, alert):
    labels, firing, quiet = CASES[alert]
    expected = [fired(rule, labels) for rule in rules if rule["alert"] == alert]
    play(promtool, groups, alert, (firing, expected), (quiet, []))


def test_a_certificate_wakes_somebody_in_its_last_day_alone(promtool, groups, rules):
    alert = "VramwardenCertificateExpires"
    warning, critical = (rule for rule in rules if rule["alert"] == alert)
    assert [one["labels"]["severity"] for one in (warning, critical)] == ["warning", "critical"]
    serving = 'vramwarden_certificate_expiry_timestamp_seconds{role="serving"}'
    expected = [fired(warning, {"role": "serving"})]
    play(promtool, groups, alert, ({serving: f"{2 * DAY_S}x500"}, expected))


def test_a_ca_is_reported_in_its_last_year_alone(promtool, groups):
    series = {CA_EXPIRY: f"{366 * DAY_S}x500", "vramwarden_ca_bundle_published": "1x500"}
    play(promtool, groups, "VramwardenCAExpires", (series, []))


def fired(rule, labels):
    return {"exp_labels": {**labels, **rule["labels"]}, "exp_annotations": rule["annotations"]}


def play(promtool, groups, alert, *cases):
    """Have Prometheus play each case's series, and find of the alert what the case expects."""
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": key, "values": value} for key, value in series.items()],
            "alert_rule_test": [
                {
                    "eval_time": "400m" if "x500" in "".join(series.values()) else "60m",
                    "alertname": alert,
                    "exp_alerts": expected,
                }
            ],
        }
        for series, expected in cases
    ]
    played = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    files = {"rules.yaml": yaml.safe_dump({"groups": groups}), "tests.yaml": yaml.safe_dump(played)}
    code, said = promtool("test", "rules", "tests.yaml", files=files)
    assert code == 0, said
