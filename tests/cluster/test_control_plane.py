"""The control plane that the other tests in this folder use."""

from __future__ import annotations

import base64

import pytest

from tests.support.control_planes import ApiError
from tests.support.webhook_configurations import Denied, OtherWebhook, webhook_configurations


def pod(namespace, name="plain"):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [{"name": "main", "image": "localhost/none"}]},
    }


def label(manifest):
    manifest["metadata"].setdefault("labels", {})["seen"] = "yes"
    return manifest


def refuse(manifest):
    raise Denied("not \N{EM DASH} this one")


def test_a_plain_pod_is_created_and_defaulted(api, namespace):
    created = api.create(pod(namespace))
    assert created["spec"]["serviceAccountName"] == "default"
    assert api.get(pod(namespace))["metadata"]["uid"] == created["metadata"]["uid"]


@pytest.mark.parametrize("namespace", [{"team": "blue"}], indirect=True)
def test_a_namespace_has_the_labels_asked_for(api, namespace):
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    assert api.get(manifest)["metadata"]["labels"]["team"] == "blue"


def test_a_request_can_be_made_as_somebody_else(api, namespace):
    with pytest.raises(ApiError, match=r'User "nobody" cannot create') as refused:
        api.acting_as("nobody", "system:authenticated", "x").create(pod(namespace))
    assert refused.value.code == 403


def test_warnings_are_kept(api, namespace):
    manifest = pod(namespace)
    manifest["spec"]["containers"][0]["env"] = [{"name": "A", "value": value} for value in "xy"]
    api.create(manifest)
    [warning] = api.warnings
    assert 'hides previous definition of "A"' in warning


def test_another_webhook_sees_a_pod_and_changes_it(api, namespace):
    with OtherWebhook(api, label, namespace=namespace) as other:
        created = api.create(pod(namespace))
    assert created["metadata"]["labels"] == {"seen": "yes"}
    assert [(r["operation"], r["namespace"]) for r in other.reviews] == [("CREATE", namespace)]
    assert "labels" not in api.create(pod(namespace, "later"))["metadata"]
    assert len(other.reviews) == 1


def test_webhooks_are_called_by_name_and_again_if_they_ask_for_it(api, namespace):
    def sign(manifest):
        manifest["metadata"]["labels"]["signed"] = "yes"
        return manifest

    early = OtherWebhook(api, label, sorts="before", reinvocation_policy="IfNeeded")
    late = OtherWebhook(api, sign, sorts="after")
    with late, early:
        created = api.create(pod(namespace))
    assert created["metadata"]["labels"] == {"seen": "yes", "signed": "yes"}
    assert [len(early.reviews), len(late.reviews)] == [2, 1]


def test_the_message_of_a_denial_arrives(api, namespace):
    with OtherWebhook(api, refuse), pytest.raises(ApiError) as denied:
        api.create(pod(namespace))
    assert denied.value.code == 403
    assert denied.value.message == (
        'admission webhook "other.tests.invalid" denied the request: not \N{EM DASH} this one'
    )


def test_our_configurations_are_redirected(tmp_path):
    client = "{url: 'https://127.0.0.1:8443/mutate', caBundle: CA_BUNDLE}"
    text = f"webhooks: [{{name: a, clientConfig: {client}}}]\n"
    path = tmp_path / "local.yaml"
    path.write_text(f"{text}---\n{text}")
    for document in webhook_configurations("https://127.0.0.1:9", b"pem", path=path):
        target = document["webhooks"][0]["clientConfig"]
        assert target["url"] == "https://127.0.0.1:9/mutate"
        assert base64.b64decode(target["caBundle"]) == b"pem"
