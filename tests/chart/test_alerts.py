"""Alerts: their metrics exist, and each alert fires exactly when it should."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import pytest
import yaml

from tests.chart.metrics import asked_of, known_metrics, unknown
from tests.support.charts import DEPLOY, one

PAGES = {"vramwarden": "alerts", "vramwarden-nodes": "node-alerts"}
"""Page in deploy/ with a section for each alert, keyed by rule group."""
POD = '{node="n1",gpu="0",uuid="gpu-1",namespace="team",pod="p"}'
OTHERS = POD.replace('"team"', '"_other"').replace('"p"', '"_other"')
USED, CAP = "vramwarden_pod_memory_used_bytes", "vramwarden_pod_memory_cap_bytes"
GPU = '{node="n1",gpu="0",uuid="gpu-1"}'
HEALTHY = f"vramwarden_gpu_healthy{GPU}"
SCANNED = 'vramwarden_sentry_last_scan_timestamp_seconds{node="n1"}'
UNMANAGED = 'vramwarden_gpu_memory_unmanaged_bytes{node="n1",gpu="0",pod_uid="u"}'
PROMISED = f"vramwarden_gpu_memory_promised_bytes{GPU}"
USABLE = f"vramwarden_gpu_memory_usable_bytes{GPU}"
BUCKET = 'vramwarden_admission_duration_seconds_bucket{webhook="mutate",le="%s"}'
CALLS = "apiserver_admission_webhook_"
UNREACHED = f'{CALLS}rejection_count{{name="mutate.vramwarden.io",error_type="%s"}}'
FAILED_OPEN = f'{CALLS}fail_open_count{{name="%s.vramwarden.io"}}'
STOPS = 'vramwarden_sentry_stops_total{enforcer="%s",node="n1",target="pod"}'
WATCH_FAILED = 'vramwarden_placement_watch_failed{resource="pods"}'
DAEMON_SET = 'kube_daemonset_status_%s{namespace="ours",daemonset="vramwarden-%s"}'
DESIRED, READY = "desired_number_scheduled", "number_ready"
UP = 'up{job="ours/vramwarden-sentry",namespace="ours",pod="%s"}'
ACTING = 'kube_node_status_condition{condition="%s",node="n1",status="%s"}'
SENTRY_ACTING = "vramwarden.io/SentryActing"
UNSCHEDULABLE = 'kube_pod_status_unschedulable{namespace="team",pod="p",uid="u"}'
REQUESTS = (
    'kube_pod_container_resource_requests{namespace="team",pod="p",container="c",resource="%s"}'
)
GATED = 'kube_pod_status_reason{namespace="team",pod="p",uid="u",reason="SchedulingGated"}'
FAILS = 'vramwarden_admission_requests_total{reason="InternalError"}'
STOPPED = 'vramwarden_pod_stops_total{node="n1",namespace="team",pod="p"}'
DAY_S = 86400
EXPIRY = 'vramwarden_certificate_expiry_timestamp_seconds{role="%s"}'
SERVING, CA_EXPIRY = EXPIRY % "serving", EXPIRY % "ca"
PUBLISHED = "vramwarden_ca_bundle_published"
INFO = 'vramwarden_policy_info{pod="%s",digest="%s"}'
NAMED = {"namespace": "team", "pod": "p"}
ONCE = "0x55 1x4"
"""Counter that increases shortly before the end."""
APPEARS = "_x56 1x4"
"""Counter that appears shortly before the end, with its first event."""


class Case(NamedTuple):
    """Samples keyed by series, one per minute for an hour, or longer if a value has `x400`."""

    firing: dict[str, str]
    """Series with which the alert fires at the end."""
    ended: dict[str, str]
    """Samples of a second hour, after which the alert no longer fires."""
    quiet: dict[str, str]
    """Series with which the alert never fires."""
    labels: Mapping[str, str] = MappingProxyType({})
    """Labels of the alert, besides its severity."""


CASES = {
    "VramwardenUnreachable": Case(
        {UNREACHED % "calling_webhook_error": "0+1x60"},
        {UNREACHED % "calling_webhook_error": "60x60"},
        {
            UNREACHED.replace("vramwarden", "other") % "calling_webhook_error": "0+1x60",
            UNREACHED % "no_error": "0+1x60",
        },
    ),
    "VramwardenBypassed": Case(
        {FAILED_OPEN % "validate": APPEARS},
        {FAILED_OPEN % "validate": "1x60"},
        {FAILED_OPEN % "bind": APPEARS},
    ),
    "VramwardenFails": Case(
        {FAILS: APPEARS},
        {FAILS: "1x60"},
        {'vramwarden_admission_requests_total{reason="TooLarge"}': APPEARS},
    ),
    "VramwardenPatchWrong": Case(
        {'vramwarden_patch_checks_total{result="failed"}': ONCE},
        {'vramwarden_patch_checks_total{result="failed"}': "1x60"},
        {'vramwarden_patch_checks_total{result="passed"}': "0+9x60"},
    ),
    "VramwardenSlow": Case(
        {BUCKET % "0.1": "0+90x60", BUCKET % "0.25": "0+100x60", BUCKET % "+Inf": "0+100x60"},
        {
            BUCKET % "0.1": "5500+100x60",
            BUCKET % "0.25": "6100+100x60",
            BUCKET % "+Inf": "6100+100x60",
        },
        {BUCKET % "0.1": "0+995x60", BUCKET % "0.25": "0+1000x60", BUCKET % "+Inf": "0+1000x60"},
    ),
    "VramwardenPlacementWatchFailed": Case(
        {WATCH_FAILED: "1x60"},
        {WATCH_FAILED: "0x60"},
        {WATCH_FAILED: "0x20 1x8 0x22 1x8"},
        {"resource": "pods"},
    ),
    "VramwardenPolicyInvalid": Case(
        {"vramwarden_policy_stale": "1x60"},
        {"vramwarden_policy_stale": "0x60"},
        {"vramwarden_policy_stale": "0x20 1x3 0x36"},
    ),
    "VramwardenPolicyEmpty": Case(
        {"vramwarden_policy_rules": "0x60"},
        {"vramwarden_policy_rules": "3x60"},
        {'vramwarden_policy_rules{pod="a"}': "0x60", 'vramwarden_policy_rules{pod="b"}': "3x60"},
    ),
    "VramwardenPoliciesDiffer": Case(
        {INFO % ("a", "1"): "1x60", INFO % ("b", "2"): "1x60"},
        {INFO % ("a", "1"): "1x60", INFO % ("b", "2"): "stale"},
        {INFO % ("a", "1"): "1x60", INFO % ("b", "1"): "1x60"},
    ),
    "VramwardenCertificateExpires": Case(
        {SERVING: f"{DAY_S}x400", CA_EXPIRY: f"{90 * DAY_S}x400"},
        {SERVING: f"{8 * DAY_S}x60", CA_EXPIRY: f"{90 * DAY_S}x60"},
        {SERVING: f"{8 * DAY_S}x400"},
        {"role": "serving"},
    ),
    "VramwardenCAExpires": Case(
        {CA_EXPIRY: f"{364 * DAY_S}x400", PUBLISHED: "1x400"},
        {CA_EXPIRY: f"{3650 * DAY_S}x60", PUBLISHED: "1x60"},
        {CA_EXPIRY: f"{364 * DAY_S}x400"},
    ),
    "VramwardenCABundleWrong": Case(
        {f'{PUBLISHED}{{pod="a"}}': "0x60", PUBLISHED: "1x60"},
        {f'{PUBLISHED}{{pod="a"}}': "1x60", PUBLISHED: "1x60"},
        {PUBLISHED: "1x20 0x8 1x31"},
    ),
    "VramwardenGPUUnhealthy": Case(
        {HEALTHY: "0x60", SCANNED: "0+60x60"},
        {HEALTHY: "1x60", SCANNED: "3660+60x60"},
        {HEALTHY: "1x20 0x1 1x37"},
        {"node": "n1", "gpu": "0"},
    ),
    "VramwardenUnmanagedMemory": Case(
        {UNMANAGED: f"{300 * 2**20}x60"},
        {UNMANAGED: f"{200 * 2**20}x60"},
        {UNMANAGED: f"{200 * 2**20}x60"},
        {"node": "n1", "gpu": "0", "pod_uid": "u"},
    ),
    "VramwardenOverpromised": Case(
        {PROMISED: "101x60", USABLE: "100x60"},
        {PROMISED: "100x60", USABLE: "100x60"},
        {PROMISED: "100x20 101x3 100x35", USABLE: "100x60"},
        {"node": "n1", "gpu": "0"},
    ),
    "VramwardenAgentDown": Case(
        {DAEMON_SET % (DESIRED, "agent"): "3x60", DAEMON_SET % (READY, "agent"): "2x60"},
        {DAEMON_SET % (DESIRED, "agent"): "3x60", DAEMON_SET % (READY, "agent"): "3x60"},
        {
            DAEMON_SET % (DESIRED, "agent"): "3x60",
            DAEMON_SET % (READY, "agent"): "3x20 2x12 3x26",
            DAEMON_SET % (DESIRED, "other"): "5x60",
            DAEMON_SET % (READY, "other"): "2x60",
        },
        {"namespace": "ours"},
    ),
    "VramwardenSentryDown": Case(
        {UP % "a": "0x60"},
        {UP % "a": "1x60"},
        {
            UP % "a": "1x47 0x12",
            UP % "gone": "0x12 stale",
            'up{job="vramwarden-webhook",namespace="ours",pod="b"}': "0x60",
            DAEMON_SET % (DESIRED, "sentry"): "3x60",
            DAEMON_SET % (READY, "sentry"): "3x20 2x12 3x26",
        },
        {"namespace": "ours", "pod": "a"},
    ),
    "VramwardenSentryAbsent": Case(
        {ACTING % (SENTRY_ACTING, "false"): ONCE},
        {ACTING % (SENTRY_ACTING, "false"): "0x60"},
        {
            ACTING % (SENTRY_ACTING, "true"): "1x60",
            ACTING % (SENTRY_ACTING, "false"): "0x60",
            ACTING % ("Ready", "false"): "1x60",
        },
        {"node": "n1"},
    ),
    "VramwardenSentryStale": Case(
        {SCANNED: "3000x60"},
        {SCANNED: "3660+60x60"},
        {SCANNED: "0+60x60"},
        {"node": "n1"},
    ),
    "VramwardenSentryStops": Case(
        {STOPS % "Sidecar": ONCE},
        {STOPS % "Sidecar": "1x60"},
        {STOPS % "Sidecar": "1x60", STOPS % "Sentry": ONCE},
        {"node": "n1"},
    ),
    "VramwardenLimiterDown": Case(
        # The pod crashes repeatedly and is ready for one minute each time.
        {
            DAEMON_SET % (DESIRED, "limiter"): "3x60",
            DAEMON_SET % (READY, "limiter"): " ".join(["3 2x3"] * 12) + " 2",
        },
        {DAEMON_SET % (DESIRED, "limiter"): "3x60", DAEMON_SET % (READY, "limiter"): "3x60"},
        {
            DAEMON_SET % (DESIRED, "limiter"): "3x60",
            DAEMON_SET % (READY, "limiter"): "3x20 2x7 3x31",
        },
        {"namespace": "ours"},
    ),
    "VramwardenBoundWithoutGPU": Case(
        {"vramwarden_placement_waiting": "2x60"},
        {"vramwarden_placement_waiting": "0x60"},
        {"vramwarden_placement_waiting": "0x20 2x3 0x35"},
    ),
    "VramwardenPending": Case(
        {UNSCHEDULABLE: "1x60", REQUESTS % "vramwarden_io_vram": "8x60"},
        {UNSCHEDULABLE: "stale", REQUESTS % "vramwarden_io_vram": "8x60"},
        {UNSCHEDULABLE: "1x60", REQUESTS % "nvidia_com_gpu": "1x60"},
        NAMED,
    ),
    "VramwardenPodStopped": Case(
        {STOPPED: APPEARS},
        {STOPPED: "1x60"},
        {STOPPED: "0x60"},
        NAMED,
    ),
    "VramwardenPodNearCap": Case(
        {f"{USED}{POD}": "9600+5x60", f"{CAP}{POD}": "10000x60"},
        {f"{USED}{POD}": "9900x60", f"{CAP}{POD}": "10000x60"},
        {
            # A server that allocates its part of the cap at its start and keeps it.
            f"{USED}{POD}": "0x5 5000 9800x60",
            f"{CAP}{POD}": "10000x60",
            f"{USED}{OTHERS}": "9600+5x60",
            f"{CAP}{OTHERS}": "10000x60",
        },
        NAMED,
    ),
    "VramwardenIdlePromise": Case(
        {f"{USED}{POD}": "9x400", f"{CAP}{POD}": "100x400"},
        {f"{USED}{POD}": "10x60", f"{CAP}{POD}": "100x60"},
        {
            f"{USED}{POD}": "9x200 10 9x200",
            f"{CAP}{POD}": "100x400",
            f"{USED}{OTHERS}": "1x400",
            f"{CAP}{OTHERS}": "100x400",
        },
        NAMED,
    ),
}


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
        assert ours or re.search(r"\bapiserver_|\bup\{|\bkube_", rule["expr"]), name
        if ours:
            assert unknown(rule["expr"], known) == [], name


def test_alerts_name_nobody_in_their_sentence_and_say_how_bad_it_is(rules):
    for rule in rules:
        name = rule["alert"]
        assert re.fullmatch("Vramwarden[A-Z][A-Za-z]+", name)
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}, name
        assert rule["annotations"]["summary"][-1] in ".?", name


def test_every_alert_leads_to_its_section_where_the_page_is_known(helm, groups):
    assert all(
        "runbook_url" not in rule["annotations"] for group in groups for rule in group["rules"]
    )
    url = "https://git.example/blob/main/{page}.md"
    values = {"prometheusRule": {"enabled": True}, "documentationURL": url}
    led = one(helm.render(values), "PrometheusRule")["spec"]["groups"]
    for group in led:
        page = PAGES[group["name"]]
        # Anchors as generated by GitHub and the site.
        sections = re.findall(r"^## (\w+)$", (DEPLOY / f"{page}.md").read_text(), re.MULTILINE)
        url = f"https://git.example/blob/main/deploy/{page}.md"
        links = {rule["alert"]: rule["annotations"].pop("runbook_url") for rule in group["rules"]}
        assert links == {name: f"{url}#{name.lower()}" for name in sections}
    assert led == groups


def test_every_alert_is_played(rules):
    assert list(CASES) == list(dict.fromkeys(rule["alert"] for rule in rules))


def test_prometheus_can_read_the_rules(promtool, groups):
    files = {"rules.yaml": yaml.safe_dump({"groups": groups})}
    code, said = promtool("check", "rules", "--lint=all", "rules.yaml", files=files)
    assert code == 0, said


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_and_ends(promtool, groups, rules, alert):
    case = CASES[alert]
    assert case.firing.keys() == case.ended.keys()
    end = length(case.firing)
    series = {key: f"{value} {case.ended[key]}" for key, value in case.firing.items()}
    expected = [fired(rule, case.labels) for rule in rules if rule["alert"] == alert]
    play(promtool, groups, alert, series, {end: expected, end + 60: []})


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_never_fires_where_it_should_not(promtool, groups, alert):
    quiet = CASES[alert].quiet
    play(promtool, groups, alert, quiet, {at: [] for at in range(1, length(quiet) + 1)})


def test_a_lost_gpu_is_reported_for_an_hour_after_it_left_the_figures(promtool, groups, rules):
    alert = "VramwardenGPUUnhealthy"
    (rule,) = (rule for rule in rules if rule["alert"] == alert)
    series = {HEALTHY: "1x10 0x4 stale", SCANNED: "0+60x120"}
    expected = [fired(rule, {"node": "n1", "gpu": "0"})]
    play(promtool, groups, alert, series, {14: expected, 60: expected, 90: []})
    deleted = {HEALTHY: "1x10 0x4 stale", SCANNED: "0+60x15 stale"}
    play(promtool, groups, alert, deleted, {14: expected, 20: []})


def test_a_healthy_gpu_is_not_reported_when_its_sentry_is_replaced(promtool, groups):
    before, after = (HEALTHY.replace("{", f'{{instance="{name}",') for name in "ab")
    series = {before: "0x1 stale", after: "_x2 1x60", SCANNED: "0+60x120"}
    play(promtool, groups, "VramwardenGPUUnhealthy", series, {at: [] for at in range(1, 60)})


def test_a_sentry_without_a_pod_is_reported_by_its_daemon_set(promtool, groups, rules):
    alert = "VramwardenSentryDown"
    (rule,) = (rule for rule in rules if rule["alert"] == alert)
    series = {
        DAEMON_SET % (DESIRED, "sentry"): "3x120",
        DAEMON_SET % (READY, "sentry"): "2x60 3x60",
    }
    expected = [fired(rule, {"namespace": "ours"})]
    play(promtool, groups, alert, series, {60: expected, 70: []})


def test_a_pod_behind_a_scheduling_gate_is_not_pending_for_memory(promtool, groups):
    series = {UNSCHEDULABLE: "1x60", REQUESTS % "vramwarden_io_vram": "8x60", GATED: "1x60"}
    play(promtool, groups, "VramwardenPending", series, {60: []})


@pytest.mark.parametrize(
    ("alert", "series", "labels"),
    [
        ("VramwardenBypassed", FAILED_OPEN % "validate", {}),
        ("VramwardenFails", FAILS, {}),
        ("VramwardenPodStopped", STOPPED, NAMED),
    ],
)
def test_a_counter_is_reported_when_it_appears_and_when_it_rises(
    promtool, groups, rules, alert, series, labels
):
    """The alert does not fire if a counter returns after a failed scrape or from another sentry."""
    (rule,) = (rule for rule in rules if rule["alert"] == alert)
    samples = {series: "_x60 1x39 _ 1x59 2x40"}
    quiet = {at: [] for at in (59, 75, 100, 101, 102, 111, 112, 113, 159, 175)}
    expected = {at: [fired(rule, labels)] for at in (62, 165)}
    play(promtool, groups, alert, samples, quiet | expected)


def test_a_stop_is_not_reported_again_by_another_sentry(promtool, groups):
    before, after = (STOPPED.replace("{", f'{{instance="{name}",') for name in "ab")
    series = {before: "1x60 stale", after: "_x61 1x60"}
    play(promtool, groups, "VramwardenPodStopped", series, {at: [] for at in range(30, 120)})


def test_a_plateau_near_the_cap_ends_the_alert(promtool, groups, rules):
    """This holds even with another sentry, whose series is new."""
    alert = "VramwardenPodNearCap"
    (rule,) = (rule for rule in rules if rule["alert"] == alert)
    series = {
        f"{USED}{POD}": "9600+3x60 9780x60",
        f"{CAP}{POD}": "10000x120",
    }
    play(promtool, groups, alert, series, {60: [fired(rule, NAMED)], 95: []})
    other = POD.replace("{", '{instance="b",')
    series = {
        f"{USED}{POD}": "9780x60 stale",
        f"{CAP}{POD}": "10000x60 stale",
        f"{USED}{other}": "_x60 9780x120",
        f"{CAP}{other}": "_x60 10000x120",
    }
    play(promtool, groups, alert, series, {at: [] for at in range(1, 180)})


def test_a_certificate_is_critical_in_its_last_day_alone(promtool, groups, rules):
    alert = "VramwardenCertificateExpires"
    warning, critical = (rule for rule in rules if rule["alert"] == alert)
    assert [item["labels"]["severity"] for item in (warning, critical)] == ["warning", "critical"]
    expected = [fired(warning, {"role": "serving"})]
    play(promtool, groups, alert, {SERVING: f"{2 * DAY_S}x400"}, {400: expected})


def test_a_ca_is_reported_in_its_last_year_alone(promtool, groups):
    series = {CA_EXPIRY: f"{366 * DAY_S}x400", PUBLISHED: "1x400"}
    play(promtool, groups, "VramwardenCAExpires", series, {400: []})


def fired(rule, labels):
    return {"exp_labels": {**labels, **rule["labels"]}, "exp_annotations": rule["annotations"]}


def length(series):
    """Return the number of minutes to simulate."""
    return 400 if any("x400" in values for values in series.values()) else 60


def play(promtool, groups, alert, series, expected):
    """Run Prometheus on series, and compare the alert's state at each minute."""
    test = {
        "interval": "1m",
        "input_series": [{"series": key, "values": value} for key, value in series.items()],
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": alerts}
            for minute, alerts in expected.items()
        ],
    }
    played = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
    files = {"rules.yaml": yaml.safe_dump({"groups": groups}), "tests.yaml": yaml.safe_dump(played)}
    code, said = promtool("test", "rules", "tests.yaml", files=files)
    assert code == 0, said
