from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.pods import a_pod, a_review
from webhook.server.metrics import Metrics
from webhook.server.operations import STALL_S, Health, create_app


def sample(exposition, name, **labels):
    for family in text_string_to_metric_families(exposition):
        for found in family.samples:
            if found.name == name and labels.items() <= found.labels.items():
                return found.value
    return None


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_probes_return_ok_on_the_plain_port(server, path):
    assert server.get(path) == (200, "ok\n")


def test_verbose_readiness_shows_the_policy_in_force(server):
    status, text = server.get("/readyz?verbose")
    assert status == 200
    assert text.startswith("status: ok\npolicy: ")


def test_another_path_returns_the_paths_of_the_port(server):
    status, text = server.get("/mutate")
    assert status == 404
    assert "/livez, /readyz and /metrics" in text


def test_reviews_are_counted_by_webhook_operation_decision_and_reason(server):
    labels = {
        "webhook": "mutate",
        "operation": "CREATE",
        "decision": "denied",
        "reason": "InvalidQuantity",
    }
    name = "vramwarden_admission_requests_total"
    before = sample(server.get("/metrics")[1], name, **labels) or 0
    server.review(a_review(a_pod("8GB")))
    after = server.get("/metrics")[1]
    assert sample(after, name, **labels) == before + 1
    assert sample(after, "vramwarden_admission_duration_seconds_count", webhook="mutate") >= 1
    assert sample(after, "vramwarden_admission_duration_seconds_bucket", le="0.001") is not None
    assert sample(after, "vramwarden_admission_in_flight") == 0


def test_a_request_without_its_body_is_in_flight(server):
    head = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"

    def in_flight():
        return sample(server.get("/metrics")[1], "vramwarden_admission_in_flight")

    with server.raw() as connection:
        connection.sendall(head + b"Content-Length: 9\r\n\r\n")
        server.wait_for("a request in flight", lambda: in_flight() == 1)
    server.wait_for("none", lambda: in_flight() == 0)


def test_an_unknown_key_is_logged_with_the_review(server):
    pod = a_pod()
    pod["metadata"]["annotations"] = {"vramwarden.io/gpu-mem": "8Gi"}
    (warning,) = server.review(a_review(pod, uid="mistyped"))["warnings"]
    (line,) = [line for line in server.log() if line.get("uid") == "mistyped"]
    assert line["notes"] == [warning]


def test_policy_and_certificates_are_measured(server):
    server.wait_for(
        "the first read of certificates",
        lambda: sample(server.get("/metrics")[1], "vramwarden_certificate_days_left", role="ca"),
    )
    exposition = server.get("/metrics")[1]
    assert 300 < sample(exposition, "vramwarden_certificate_days_left", role="serving") <= 366
    assert sample(exposition, "vramwarden_policy_info") == 1
    assert sample(exposition, "vramwarden_policy_stale") == 0


def test_each_review_is_one_json_line_without_its_body(server):
    secret = a_pod("8GB", annotations={"note": "do-not-log-me"})
    server.review(a_review(secret, uid="search-for-me"))
    (line,) = [line for line in server.log() if line.get("uid") == "search-for-me"]
    assert line["msg"] == "review"
    assert line["decision"] == "denied"
    assert line["reasons"] == ["InvalidQuantity"]
    assert (line["namespace"], line["name"], line["user"]) == ("team-a", "train", "dev")
    assert line["durationMs"] > 0
    assert "do-not-log-me" not in server.log_file.read_text()


def health_app(now):
    health = Health(clock=lambda: now[0])
    return health, create_app(health, Metrics(), dict).test_client()


def test_a_server_with_a_stalled_event_loop_is_dead():
    now = [0.0]
    health, client = health_app(now)
    health.serve_while(lambda: True)
    health.beat()
    assert client.get("/livez").status_code == 200
    now[0] = STALL_S + 1
    assert client.get("/livez").status_code == 503
    assert client.get("/readyz").status_code == 503


def test_a_server_is_ready_only_between_start_and_drain():
    now = [0.0]
    serving = [True]
    health, client = health_app(now)
    assert client.get("/readyz").text == "starting\n"
    health.beat()
    health.serve_while(lambda: serving[0])
    assert client.get("/readyz").text == "ok\n"
    serving[0] = False
    assert client.get("/readyz").text == "draining\n"
    assert client.get("/livez").text == "ok\n"
