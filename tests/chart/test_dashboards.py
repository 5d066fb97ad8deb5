"""The dashboard, without a Grafana: what it asks for exists, and its panels stand side by side."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from tests.chart.metrics import asked_of, grouped_by, known_metrics, unknown, webhook_exposition
from tests.support.charts import CHART, NAMESPACE, one

(PATH,) = (CHART / "dashboards").iterdir()
DASHBOARD = json.loads(PATH.read_text())
PANELS = DASHBOARD["panels"]
SHOWN = [panel for panel in PANELS if panel["type"] != "row"]
TARGETS = [(panel["title"], target["expr"]) for panel in SHOWN for target in panel["targets"]]
VARIABLES = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
OF_PROMETHEUS = {"cluster"}
"""Labels that no exporter gives: a Prometheus of several clusters does."""


def filled(expression):
    """Return an expression as Grafana sends it, with every variable at `All`."""
    for name in VARIABLES:
        expression = expression.replace(f"${name}", ".*")
    return expression.replace("$__rate_interval", "5m")


@pytest.fixture(scope="module")
def known():
    return known_metrics()


@pytest.mark.parametrize(("title", "expression"), TARGETS)
def test_every_metric_and_label_of_a_panel_exists(known, title, expression):
    assert asked_of(expression), title
    assert unknown(expression, known, OF_PROMETHEUS) == []


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
        for metric, labels in asked_of(expression):
            wanted = {"cluster"}
            wanted |= {"node"} if re.match("vramwarden_(gpu|pod|sentry)_", metric) else set()
            wanted |= {"namespace"} if metric.startswith("vramwarden_pod_") else set()
            assert wanted <= labels, (title, metric)


def test_rows_are_those_that_people_look_for():
    rows = [panel["title"] for panel in PANELS if panel["type"] == "row"]
    assert rows == ["Cluster", "GPUs", "Pods", "Trouble"]


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
    assert len(taken) == 24 * bottom  # and leave no hole


def test_every_panel_says_its_unit_and_what_it_shows():
    for panel in SHOWN:
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)


def test_bytes_are_shown_as_bytes_and_shares_as_shares():
    for panel in SHOWN:
        unit = panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            expression = target["expr"]
            counts = expression.startswith("count(") or "count by" in expression
            if "_bytes" in expression and not counts:
                assert unit == ("percentunit" if " / " in expression else "bytes"), panel["title"]


def test_no_data_source_is_named():
    """Grafana gives each installation's its own name; the variable holds it."""
    text = PATH.read_text()
    sources = re.findall(r'"uid": "([^"]*)"', text)
    assert set(sources) == {"${datasource}", "-- Grafana --", "vramwarden"}
    assert DASHBOARD["uid"] == "vramwarden"  # its own
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


def test_names_of_the_webhook_s_metrics_are_as_prometheus_wants_them(promtool):
    _, said = promtool("check", "metrics", given=webhook_exposition())
    # Kept beside the one in seconds: people have it in their own rules.
    assert said == ('vramwarden_certificate_days_left use base unit "seconds" instead of "days"\n')


def test_nothing_is_there_unless_it_is_asked_for(helm):
    text = helm.text()
    assert "Grafana" not in text
    assert "vramwarden-dashboards" not in text


def test_the_config_map_holds_the_dashboard_as_it_is_and_a_sidecar_finds_it(helm):
    values = {"dashboards": {"enabled": True, "annotations": {"grafana_folder": "GPUs"}}}
    found = one(helm.render({"grafana": values}), "ConfigMap", "vramwarden-dashboards")
    assert found["data"] == {"vramwarden.json": PATH.read_text()}
    assert found["metadata"]["namespace"] == NAMESPACE
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["metadata"]["annotations"] == {"grafana_folder": "GPUs"}


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
