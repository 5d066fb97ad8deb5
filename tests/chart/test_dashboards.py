"""The dashboard, without Grafana: its metrics exist, and its panels fill a grid."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from tests.chart.metrics import asked_of, grouped_by, known_metrics, unknown, webhook_exposition
from tests.support.charts import CHART, DEPLOY, NAMESPACE, one

(PATH,) = (CHART / "dashboards").iterdir()
DASHBOARD = json.loads(PATH.read_text())
PANELS = DASHBOARD["panels"]
SHOWN = [panel for panel in PANELS if panel["type"] != "row"]
TABLES = [panel for panel in SHOWN if panel["type"] == "table"]
TARGETS = [(panel["title"], target["expr"]) for panel in SHOWN for target in panel["targets"]]
VARIABLES = {item["name"]: item for item in DASHBOARD["templating"]["list"]}
OF_PROMETHEUS = {"cluster"}
"""Labels that a Prometheus for several clusters sets, but no exporter."""
FOREIGN = {
    "ALERTS": {"alertname", "alertstate", "severity", "node", "gpu", "namespace", "pod"},
    "ALERTS_FOR_STATE": {"alertname", "severity", "node", "gpu", "namespace", "pod"},
    "DCGM_FI_DEV_GPU_UTIL": {"UUID"},
    "kube_daemonset_status_number_unavailable": {"namespace", "daemonset"},
    "kube_deployment_status_replicas_unavailable": {"namespace", "deployment"},
    "kube_pod_container_resource_requests": {"namespace", "pod", "container", "node", "resource"},
    "kube_pod_created": {"namespace", "pod"},
    "kube_pod_status_phase": {"namespace", "pod", "phase"},
    "kube_pod_status_reason": {"namespace", "pod", "reason"},
    "kube_pod_status_unschedulable": {"namespace", "pod"},
}
"""Metrics and labels of Prometheus, NVIDIA's DCGM exporter and kube-state-metrics."""
_FOREIGN = re.compile(r"\b((?:kube|DCGM)_\w+|ALERTS\w*)(?:\{([^}]*)\})?")
DOCS = "https://git.example/vramwarden/{page}.md"

GPU = '{node="n1",gpu="0",uuid="gpu-1"}'
SECOND = '{node="n1",gpu="1",uuid="gpu-2"}'
HEALTH = 'vramwarden_gpu_healthy{node="n1",gpu="0",uuid="gpu-1",pod="%s"}'
ASKS = (
    'kube_pod_container_resource_requests{namespace="team",pod="p",container="%s",'
    'resource="vramwarden_io_vram"}'
)
OTHER = ASKS.replace('"p"', '"q"')
PLACED = 'kube_pod_status_phase{namespace="team",pod="r",phase="Running"}'
GATED = 'kube_pod_status_reason{namespace="team",pod="p",reason="SchedulingGated"}'
UNPLACED = 'kube_pod_status_unschedulable{namespace="team",pod="p"}'
FIRING = 'ALERTS{alertname="VramwardenSlow",alertstate="firing",severity="warning"}'
PENDING = FIRING.replace("firing", "pending").replace("Slow", "Fails")
INFO = FIRING.replace("warning", "info").replace("Slow", "PodStopped")
SINCE = 'ALERTS_FOR_STATE{alertname="VramwardenSlow",severity="warning"}'
LIMITER = 'kube_daemonset_status_number_unavailable{namespace="n",daemonset="vramwarden-limiter"}'
SCAN = 'vramwarden_sentry_last_scan_timestamp_seconds{node="n1"}'
UTIL = 'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-1",gpu="0",pod="%s"}'

CASES = [
    ("Unhealthy GPUs", 0, {f"vramwarden_gpu_healthy{GPU}": 1}, {'{node="all nodes"}': 0}),
    (
        "Unhealthy GPUs",
        0,
        {f"vramwarden_gpu_healthy{GPU}": 1, f"vramwarden_gpu_healthy{SECOND}": 0},
        {'{node="n1"}': 1},
    ),
    # A GPU that the sentry no longer lists, and a GPU that was repaired before the sentry
    # restarted.
    ("Unhealthy GPUs", 0, {HEALTH % "a": "0x30 _x60"}, {'{node="n1"}': 1}),
    (
        "Unhealthy GPUs",
        0,
        {HEALTH % "a": "0x30 _x60", HEALTH % "b": "_x30 1x60"},
        {'{node="all nodes"}': 0},
    ),
    ("Unhealthy GPUs", 0, {}, {}),
    (
        "All GPUs",
        1,
        {f"vramwarden_gpu_healthy{SECOND}": 1, HEALTH % "a": "0x30 _x60"},
        {GPU: 0, SECOND: 1},
    ),
    ("Not ready", 3, {LIMITER: 2}, {"{}": 2}),
    ("Not ready", 3, {LIMITER.replace("vramwarden-", "other-"): 2}, {}),
    ("Not ready", 4, {SCAN: 3600}, {"{}": 0}),
    ("Not ready", 4, {SCAN: 3600 - 181}, {"{}": 1}),
    ("Not ready", 4, {}, {}),
    ("Pending", 0, {ASKS % "a": 8, UNPLACED: 1}, {"{}": 1}),
    ("Pending", 0, {ASKS % "a": 8, PLACED: 1}, {"{}": 0}),
    ("Pending", 0, {ASKS % "a": 8, UNPLACED: 1, GATED: 1, PLACED: 1}, {"{}": 0}),
    ("Pending", 0, {}, {}),
    (
        "Firing alerts",
        0,
        {FIRING: 1, PENDING: 1, INFO: 1},
        {'{alertname="VramwardenSlow", severity="warning"}': 1},
    ),
    (
        "Firing alerts",
        1,
        {FIRING: 1, SINCE: 1700},
        {'{alertname="VramwardenSlow", severity="warning"}': 1700000},
    ),
    ("Firing alerts", 1, {PENDING: 1, SINCE.replace("Slow", "Fails"): 1700}, {}),
    (
        "Pods pending for GPU memory",
        0,
        {ASKS % "a": 8, ASKS % "b": 4, UNPLACED: 1, OTHER % "a": 16},
        {'{namespace="team", pod="p"}': 12},
    ),
    (
        "Pods pending for GPU memory",
        1,
        {
            ASKS % "a": 8,
            UNPLACED: 1,
            'kube_pod_created{namespace="team",pod="p"}': 1700,
            'kube_pod_created{namespace="team",pod="q"}': 1600,
        },
        {'{namespace="team", pod="p"}': 1700000},
    ),
    # A GPU shared by several pods has a series per pod.
    ("All GPUs", 6, {UTIL % "a": 40, UTIL % "b": 40, f"vramwarden_gpu_info{GPU}": 1}, {GPU: 40}),
    ("Utilization over time", 0, {UTIL % "a": 40, f"vramwarden_gpu_info{GPU}": 1}, {"{}": 40}),
    ("Utilization over time", 0, {UTIL % "a": 40, f"vramwarden_gpu_info{SECOND}": 1}, {}),
]
"""Series and expected values, by panel and index of the query."""


def filled(expression):
    """Return an expression as Grafana sends it, with every variable set to `All`."""
    for name in VARIABLES:
        expression = expression.replace(f"${name}", ".*")
    return expression.replace("$__rate_interval", "5m")


def asked(expression):
    """Return all metrics in an expression, each with the labels of its selector."""
    bare = re.sub('"[^"]*"', '""', expression)
    found = [(name, set(re.findall(r"(\w+) *[=!]", text))) for name, text in _FOREIGN.findall(bare)]
    return asked_of(bare) + found


def headings(table):
    """Return the headings of a table, keyed by field."""
    return table["transformations"][-1]["options"]["renameByName"]


def unit_of(panel, target):
    """Return the unit of a query's values in a panel."""
    name = target["legendFormat"]
    if panel["type"] == "table":
        reference = f"Value #{target['refId']}"
        name = headings(panel).get(reference if len(panel["targets"]) > 1 else "Value")
    unit = panel["fieldConfig"]["defaults"]["unit"]
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"] == {"id": "byName", "options": name}:
            unit = next(
                (item["value"] for item in override["properties"] if item["id"] == "unit"), unit
            )
    return unit


@pytest.fixture(scope="module")
def known():
    return known_metrics() | FOREIGN


@pytest.mark.parametrize(("title", "expression"), TARGETS)
def test_every_metric_and_label_of_a_panel_exists(known, title, expression):
    assert asked(expression), title
    bare = re.sub('"[^"]*"', '""', expression)
    labels = OF_PROMETHEUS.union(*(known.get(name, set()) for name, _ in asked(expression)))
    assert [name for name, _ in asked(expression) if name not in known] == []
    for name, selected in asked(expression):
        assert selected <= known[name] | OF_PROMETHEUS, (title, name)
    assert grouped_by(bare) <= labels, title


def test_the_labels_in_names_of_series_are_those_that_their_expression_leaves():
    for panel in SHOWN:
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert named <= grouped_by(target["expr"]), panel["title"]


def test_variables_offer_values_of_metrics_that_exist(known):
    assert list(VARIABLES) == ["datasource", "cluster", "node", "namespace"]
    for name, variable in VARIABLES.items():
        if name == "datasource":
            assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
            continue
        query = variable["query"]["query"]
        assert query == variable["definition"]
        assert re.search(rf", {name}\)$", query)
        assert unknown(query, known, OF_PROMETHEUS) == []
        ((metric, _),) = asked_of(query)
        assert name in known[metric] | OF_PROMETHEUS
        assert variable["allValue"] == ".*"  # also matches series without the label
        earlier = list(VARIABLES)[: list(VARIABLES).index(name)]
        assert set(re.findall(r"\$(\w+)", query)) <= set(earlier)


def test_every_panel_is_about_what_the_variables_choose():
    for title, expression in TARGETS:
        for metric, labels in asked(expression):
            wanted = {"cluster"}
            wanted |= {"node"} if re.match("vramwarden_(gpu|pod|sentry)_", metric) else set()
            wanted |= {"namespace"} if metric.startswith("vramwarden_pod_") else set()
            assert wanted <= labels, (title, metric)


def test_rows_are_those_that_people_look_for():
    rows = [panel["title"] for panel in PANELS if panel["type"] == "row"]
    assert rows == ["Now", "GPUs", "Pods", "Webhook"]


def test_panels_have_numbers_of_their_own_and_do_not_overlap():
    numbers = [panel["id"] for panel in PANELS]
    assert len(set(numbers)) == len(numbers)
    taken = {}
    for panel in PANELS:
        at = panel["gridPos"]
        assert at["x"] >= 0
        assert at["x"] + at["w"] <= 24
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken, (panel["title"], taken[x, y])
                taken[x, y] = panel["title"]
    bottom = max(y for _, y in taken) + 1
    assert len(taken) == 24 * bottom  # and leave no gap


def test_every_panel_says_its_unit_and_what_it_shows():
    for panel in SHOWN:
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)


def test_an_empty_panel_says_why_and_is_not_green():
    for panel in SHOWN:
        defaults = panel["fieldConfig"]["defaults"]
        assert len(defaults["noValue"]) > len("No data"), panel["title"]
        if panel["type"] == "stat":  # the first colour is also that of a missing value
            assert defaults["thresholds"]["steps"][0]["color"] != "green", panel["title"]


def test_bytes_are_shown_as_bytes_and_shares_as_shares():
    seen = set()
    for panel in SHOWN:
        for target in panel["targets"]:
            expression = target["expr"]
            counts = expression.startswith("count(") or "count by" in expression
            if "_bytes" in expression and not counts:
                share = "percentunit" if " / " in expression else "bytes"
                assert unit_of(panel, target) == share, (panel["title"], expression)
                seen.add(share)
            if "DCGM_" in expression:
                assert unit_of(panel, target) == "percent", panel["title"]
    assert seen == {"bytes", "percentunit"}


def test_labels_in_a_table_are_shown_as_they_are():
    """With the unit `bytes`, a table would show the GPU with index 0 as `0 B`."""
    for table in TABLES:
        assert table["fieldConfig"]["defaults"]["unit"] == "string", table["title"]


def test_columns_of_a_table_exist_under_their_names():
    for table in TABLES:
        options = table["transformations"][-1]["options"]
        queries = table["targets"]
        values = {f"Value #{query['refId']}" for query in queries} if queries[1:] else {"Value"}
        labels = set().union(*(grouped_by(target["expr"]) for target in queries))
        assert set(options["indexByName"]) - values <= labels, table["title"]
        assert values <= set(options["indexByName"]), table["title"]
        shown = set(options["renameByName"].values())
        named = {column["displayName"] for column in table["options"]["sortBy"]}
        for override in table["fieldConfig"]["overrides"]:
            if override["matcher"]["id"] == "byName":
                named.add(override["matcher"]["options"])
        assert named <= shown, table["title"]


def test_no_data_source_is_named():
    """Grafana names data sources. The variable holds the name."""
    text = PATH.read_text()
    sources = re.findall(r'"uid": "([^"]*)"', text)
    assert set(sources) == {"${datasource}", "-- Grafana --", "vramwarden"}
    assert DASHBOARD["uid"] == "vramwarden"  # stable across versions
    assert sources.count("vramwarden") == 1
    assert (DASHBOARD["id"], DASHBOARD["schemaVersion"]) == (None, 39)
    for panel in SHOWN:
        for thing in (panel, *panel["targets"]):
            assert thing["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_prometheus_can_read_every_expression(promtool):
    rules = [
        {"record": f"panel:{number}", "expr": filled(expression)}
        for number, (_, expression) in enumerate(TARGETS)
    ]
    text = yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]})
    code, said = promtool("check", "rules", "rules.yaml", files={"rules.yaml": text})
    assert code == 0, said
    assert f"{len(TARGETS)} rules found" in said


@pytest.mark.parametrize(("title", "number", "series", "values"), CASES)
def test_a_query_has_the_values_that_its_panel_promises(promtool, title, number, series, values):
    (panel,) = (panel for panel in SHOWN if panel["title"] == title)
    play(promtool, series, filled(panel["targets"][number]["expr"]), values)


def test_the_join_of_the_page_finds_the_gpus_of_the_exporter(promtool):
    text = (DEPLOY / "metrics.md").read_text()
    (join,) = re.findall(r"`(label_replace\(DCGM_FI_DEV_GPU_UTIL[^`]*)`", text)
    series = {UTIL % "a": 40, f"vramwarden_gpu_info{GPU}": 1}
    expression = (
        f"sum by (node, gpu, uuid) (vramwarden_gpu_info * on (uuid) group_right (node) {join})"
    )
    play(promtool, series, expression, {GPU: 40})


def play(promtool, series, expression, values):
    """Evaluate an expression with Prometheus and compare the values."""
    played = {
        "interval": "1m",
        "input_series": [
            {"series": key, "values": f"{value}x60" if isinstance(value, int) else value}
            for key, value in series.items()
        ],
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": "60m",
                "exp_samples": [{"labels": key, "value": values[key]} for key in values],
            }
        ],
    }
    files = {"test.yaml": yaml.safe_dump({"tests": [played]})}
    code, said = promtool("test", "rules", "test.yaml", files=files)
    assert code == 0, said


def test_names_of_the_webhook_s_metrics_are_as_prometheus_wants_them(promtool):
    _, said = promtool("check", "metrics", given=webhook_exposition())
    # Kept along with the metric in seconds, since users have it in their own rules.
    assert said == ('vramwarden_certificate_days_left use base unit "seconds" instead of "days"\n')


def test_nothing_is_there_unless_it_is_asked_for(helm):
    text = helm.text()
    assert "Grafana" not in text
    assert "vramwarden-dashboards" not in text


def test_the_config_map_holds_the_dashboard_and_a_sidecar_finds_it(helm):
    values = {"dashboards": {"enabled": True, "annotations": {"grafana_folder": "GPUs"}}}
    found = one(helm.render({"grafana": values}), "ConfigMap", "vramwarden-dashboards")
    (name,) = found["data"]
    assert name == PATH.name
    # Without a documentation URL, no panel has a link.
    panels = [{key: panel[key] for key in panel if key != "links"} for panel in PANELS]
    assert json.loads(found["data"][name]) == {**DASHBOARD, "panels": panels}
    assert found["metadata"]["namespace"] == NAMESPACE
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["metadata"]["annotations"] == {"grafana_folder": "GPUs"}


def test_panels_lead_to_the_sections_of_their_alerts(helm):
    values = {"documentationURL": DOCS, "grafana": {"dashboards": {"enabled": True}}}
    (text,) = one(helm.render(values), "ConfigMap", "vramwarden-dashboards")["data"].values()
    linked = {}
    for panel in json.loads(text)["panels"]:
        for link in panel.get("links", []):
            linked[link["title"]] = link["url"]
    urls = {page: DOCS.replace("{page}", f"deploy/{page}") for page in ("alerts", "node-alerts")}
    assert linked.pop("Alerts on the webhook") == urls["alerts"]
    assert linked.pop("Alerts on nodes") == urls["node-alerts"]
    sections = {
        name: f"{urls[page]}#{name.lower()}"
        for page in urls
        for name in re.findall(r"^## (\w+)$", (DEPLOY / f"{page}.md").read_text(), re.MULTILINE)
    }
    assert linked.keys() > {"VramwardenGPUUnhealthy", "VramwardenAgentDown", "VramwardenPending"}
    assert linked == {name: sections[name] for name in linked}


def test_grafana_s_operator_gets_an_object_that_names_the_config_map(helm):
    objects = helm.render({"grafana": {"operator": {"enabled": True}}})
    config = one(objects, "ConfigMap", "vramwarden-dashboards")
    assert "grafana_dashboard" not in config["metadata"]["labels"]
    found = one(objects, "GrafanaDashboard")
    assert found["apiVersion"] == "grafana.integreatly.org/v1beta1"
    assert found["metadata"]["namespace"] == config["metadata"]["namespace"]
    (key,) = config["data"]
    assert found["spec"] == {
        "instanceSelector": {"matchLabels": {"dashboards": "grafana"}},
        "allowCrossNamespaceImport": True,
        "configMapRef": {"name": config["metadata"]["name"], "key": key},
    }
