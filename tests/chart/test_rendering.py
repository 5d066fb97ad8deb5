"""The rendered chart is consistent with itself, the repository and the documentation."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.support.charts import (
    CHART,
    DEPLOY,
    NAMESPACE,
    HelmError,
    binding_webhook,
    hooks,
    one,
    pod_templates,
    webhook,
)
from webhook import __version__
from webhook.adapters.policy.files import PolicySource, shipped_policy_path
from webhook.agent.heartbeat import RUN_FOLDER
from webhook.cli.agent import agent_command
from webhook.cli.serve import serve_command
from webhook.names import DOCUMENTATION_URL_ENV, WEBHOOK_CONFIGURATION
from webhook.options import default_enforcer_image
from webhook.server.service import DRAIN_S

LOCAL = list(yaml.safe_load_all((DEPLOY / "local.yaml").read_text()))
LOCAL_BINDING = list(yaml.safe_load_all((DEPLOY / "local-binding.yaml").read_text()))
KINDS = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"]


@pytest.fixture(scope="module")
def rendered(helm):
    return helm.render()


def container_of(objects, kind, name=""):
    (container,) = one(objects, kind, name)["spec"]["template"]["spec"]["containers"]
    return container


def options(command, container):
    """Parse a container's arguments with the actual command."""
    name, *arguments = container["args"]
    assert name == command.name
    with command.make_context(name, arguments, resilient_parsing=False) as context:
        return context.params


def test_chart_and_package_have_one_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


def test_the_chart_ships_the_shipped_policy(rendered):
    shipped = shipped_policy_path().read_text()
    assert one(rendered, "ConfigMap", "vramwarden-policies")["data"] == {"default.yaml": shipped}


def test_policies_reach_the_webhook_as_they_were_written(helm, tmp_path):
    files = {
        "10-first.yaml": "apiVersion: vramwarden.io/v1alpha1\nkind: VRAMPolicy\n"
        "metadata: {name: a}\nspec:\n  rules:\n  - {name: mine, match: {namespaces: [a]}}\n",
        "default.yaml": "\n# trailing spaces  \n\n",
    }
    objects = helm.render({"policies": {"files": files}})
    data = one(objects, "ConfigMap", "vramwarden-policies")["data"]
    assert data == files == one(objects, "ConfigMap", "vramwarden-policy-check")["data"]
    for name, text in data.items():
        (tmp_path / name).write_text(text)
    assert [rule.name for rule in PolicySource(tmp_path, "x:1").current.rules] == ["mine"]


def test_exempt_are_the_namespaces_that_the_shipped_policy_ignores(rendered):
    system = yaml.safe_load(shipped_policy_path().read_text())["spec"]["rules"][0]
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    exempt = [*values["exemptNamespaces"], NAMESPACE, values["sentry"]["namespace"]]
    assert exempt == sorted(system["match"]["namespaces"], key=exempt.index)


@pytest.mark.parametrize("kind", [*KINDS, "Binding"])
def test_the_webhooks_are_those_of_the_local_manifests(rendered, kind):
    if kind == "Binding":
        ours, local = binding_webhook(rendered), binding_webhook(LOCAL_BINDING)
    else:
        ours, local = webhook(rendered, kind), webhook(LOCAL, kind)
    for field in (
        "name",
        "rules",
        "sideEffects",
        "failurePolicy",
        "timeoutSeconds",
        "admissionReviewVersions",
        "reinvocationPolicy",
    ):
        assert ours.get(field) == local.get(field), field
    if kind != "Binding":  # the server writes the path for bindings
        path = re.search("/[a-z]+$", local["clientConfig"]["url"]).group()
        assert ours["clientConfig"]["service"]["path"] == path
    names = ours["namespaceSelector"]["matchExpressions"][0]
    assert (names["key"], names["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
    assert {"kube-system", "kube-public", "kube-node-lease", NAMESPACE} <= set(names["values"])
    assert ours["namespaceSelector"]["matchExpressions"][1:] == [
        {"key": "vramwarden.io/webhook", "operator": "NotIn", "values": ["disabled"]}
    ]


def test_three_calls_fit_into_the_time_of_one_request(rendered):
    mutating, validating = (webhook(rendered, kind)["timeoutSeconds"] for kind in KINDS)
    assert 2 * mutating + validating < 34  # requestTimeoutUpperBound of the API server


def test_the_webhook_survives_upgrades_drains_and_busy_nodes(rendered):
    deployment = one(rendered, "Deployment")["spec"]
    pod, container = deployment["template"]["spec"], container_of(rendered, "Deployment")
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert "cpu" not in container["resources"]["limits"]
    assert (
        container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]
    )
    sleep_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > sleep_s + DRAIN_S + 5  # gunicorn's own timeout
    assert {constraint["whenUnsatisfiable"] for constraint in pod["topologySpreadConstraints"]} == {
        "DoNotSchedule",
        "ScheduleAnyway",
    }


def test_selectors_find_the_pods_of_their_part_alone(rendered):
    labels = {
        pod["metadata"]["name"]: pod["metadata"]["labels"].items()
        for pod in pod_templates(rendered)
        if not hooks(pod)
    }
    selectors = [
        ("webhook", one(rendered, "Service")["spec"]["selector"]),
        ("webhook", one(rendered, "Deployment")["spec"]["selector"]["matchLabels"]),
        *(
            (
                part,
                one(rendered, "DaemonSet", f"vramwarden-{part}")["spec"]["selector"]["matchLabels"],
            )
            for part in ("agent", "sentry")
        ),
        ("webhook", one(rendered, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"]),
        *(
            (
                part,
                one(rendered, "NetworkPolicy", f"vramwarden-{part}")["spec"]["podSelector"][
                    "matchLabels"
                ],
            )
            for part in ("webhook", "agent", "sentry")
        ),
        *(
            ("webhook", constraint["labelSelector"]["matchLabels"])
            for constraint in one(rendered, "Deployment")["spec"]["template"]["spec"][
                "topologySpreadConstraints"
            ]
        ),
    ]
    for part, selector in selectors:
        found = {name for name, pairs in labels.items() if selector.items() <= pairs}
        assert found == {f"vramwarden-{part}"}


def test_labels_of_a_user_do_not_hide_a_pod_from_its_selector(helm):
    wrong = {"app.kubernetes.io/component": "other"}
    parts = {part: {"podLabels": wrong} for part in ("webhook", "agent", "sentry")}
    objects = helm.render(parts)
    for part in parts:
        kind = "Deployment" if part == "webhook" else "DaemonSet"
        spec = one(objects, kind, f"vramwarden-{part}")["spec"]
        assert (
            spec["selector"]["matchLabels"].items()
            <= spec["template"]["metadata"]["labels"].items()
        )


def test_the_webhook_is_started_with_options_that_it_has(helm):
    certificate = {"mode": "existingSecret", "existingSecret": {"name": "mine", "caBundle": "x"}}
    network = {"apiServerCIDRs": ["192.0.2.0/24", "2001:db8::/32"]}
    mine = {"certificates": certificate, "networkPolicy": network}
    for values, own in (({}, True), (mine, False)):
        objects = helm.render(values)
        container = container_of(objects, "Deployment")
        name, *arguments = container["args"]
        assert name == serve_command.name
        known = {option for parameter in serve_command.params for option in parameter.opts}
        assert {argument.partition("=")[0] for argument in arguments} <= known
        assert ("--cert-secret" in "".join(arguments)) == own
        (configurations,) = {one(objects, kind)["metadata"]["name"] for kind in KINDS}
        assert f"--webhook-configuration={configurations}" in arguments
        named = [each for each in arguments if each.startswith("--api-server=")]
        cidrs = values.get("networkPolicy", {}).get("apiServerCIDRs", [])
        assert named == [f"--api-server={cidr}" for cidr in cidrs]
        given = dict(argument.split("=", 1) for argument in arguments)
        ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
        assert (given["--port"], given["--operations-port"]) == (
            ports["https"],
            ports["operations"],
        )
        assert given["--enforcer-image"] == default_enforcer_image()
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert {given[key] for key in ("--policy", "--cert-dir") if key in given} <= mounts


def test_policies_are_checked_before_anything_is_installed(rendered):
    """A Job checks them without permissions, and therefore without objects of the release."""
    job = one(rendered, "Job")
    assert hooks(job) == "pre-install,pre-upgrade"
    pod = job["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod
    (container,) = pod["containers"]
    assert container["image"] == container_of(rendered, "Deployment")["image"]
    *command, folder = container["args"]
    assert command == ["policy", "check"]
    (source,) = [v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v]
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert mounted[folder] == "policies"
    config = one(rendered, "ConfigMap", source)
    assert hooks(config) == hooks(job)
    weights = [
        thing["metadata"]["annotations"].get("helm.sh/hook-weight") for thing in (config, job)
    ]
    assert weights == ["-1", None]  # the Job is created after its policies


@pytest.mark.parametrize("rollout", ["Observe", "Enforce"])
def test_the_rollout_is_observed_until_somebody_says_otherwise(helm, rollout):
    given = {"rollout": rollout} if rollout == "Enforce" else None
    assert f"--rollout={rollout}" in container_of(helm.render(given), "Deployment")["args"]


def test_the_agent_is_started_with_options_that_it_has(helm):
    values = {"vram": "48Gi", "startupTaint": "example.com/starting"}
    container = container_of(helm.render({"agent": values}), "DaemonSet", "vramwarden-agent")
    found = options(agent_command, container)
    assert found["node"] == "$(NODE_NAME)"
    assert found["namespace"] == "$(POD_NAMESPACE)"
    fields = {
        variable["name"]: variable.get("valueFrom", {}).get("fieldRef")
        for variable in container["env"]
    }
    assert fields["NODE_NAME"] == {"fieldPath": "spec.nodeName"}
    assert fields["POD_NAMESPACE"] == {"fieldPath": "metadata.namespace"}
    assert found["fixed_bytes"] == 48 * 2**30
    assert found["startup_taint"] == "example.com/starting"
    assert found["run_folder"] == RUN_FOLDER
    assert RUN_FOLDER in {mount["mountPath"] for mount in container["volumeMounts"]}
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["exec"]["command"][-1] == RUN_FOLDER


def test_rights_are_narrowed_by_name_wherever_a_name_is_known(rendered):
    rights = [
        (thing["metadata"]["name"], rule)
        for thing in rendered
        if thing["kind"] in {"Role", "ClusterRole"}
        for rule in thing["rules"]
    ]
    wide = {(name, *rule["resources"]) for name, rule in rights if "resourceNames" not in rule}
    assert wide == {
        ("vramwarden-agent", "nodes"),  # the fence restricts these two
        ("vramwarden-agent", "nodes/status"),
        ("vramwarden-agent", "resourceslices"),  # to read
        ("vramwarden-agent", "gpunodes"),  # to read
        ("vramwarden-agent-events", "events"),  # to write
        ("vramwarden-agent", "configmaps"),  # named after its node, only in this namespace
        ("vramwarden-webhook", "configmaps"),  # only in this namespace
        ("vramwarden-sentry", "configmaps"),  # only in this namespace
        ("vramwarden-sentry", "pods/status"),  # the fence restricts these two
        ("vramwarden-sentry", "events"),
        ("vramwarden-sentry", "gpunodes"),  # to write its own
        ("vramwarden-sentry", "nodes"),  # to read
        ("vramwarden-gpunodes", "gpunodes"),  # to read, by the users of a value
        ("vramwarden-view", "vramhistories", "gpunodes"),  # to read, by users with the role `view`
        ("vramwarden-webhook", "gpunodes"),  # to read
        ("vramwarden-webhook", "vramhistories"),  # its own kind, in any namespace
        ("vramwarden-webhook", "namespaces"),  # to read their labels
        ("vramwarden-webhook", "nodes", "pods"),  # to read
        ("vramwarden-webhook", "resourceclaims"),  # to read
        ("vramwarden-webhook", "pods/status"),  # the fence restricts these two
        ("vramwarden-webhook", "pods"),
        ("vramwarden-test-pods", "pods"),  # while `helm test` runs
    }
    for _, rule in rights:
        assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
    (secrets,) = [rule for _, rule in rights if rule["resources"] == ["secrets"]]
    assert secrets["resourceNames"] == [one(rendered, "Secret")["metadata"]["name"]]


def rights_of_the_webhook(objects):
    return {
        (resource, *rule["verbs"])
        for thing in objects
        if thing["kind"] in {"Role", "ClusterRole"}
        and thing["metadata"]["name"] == "vramwarden-webhook"
        for rule in thing["rules"]
        for resource in rule["resources"]
    }


FENCED = {("pods/status", "patch"), ("pods", "delete")}
RIGHTS = {
    ("nodes", "get", "list", "watch"),
    ("pods", "get", "list", "watch"),
    ("configmaps", "get", "list", "create", "update", "delete"),
    ("configmaps", "watch"),
    ("namespaces", "get", "list", "watch"),
    ("gpunodes", "get"),
    ("resourceclaims", "get"),
    ("vramhistories", "get", "list", "watch", "create", "patch", "delete"),
    ("runtimeclasses", "get", "list", "watch"),
    ("mutatingwebhookconfigurations", "get", "list", "watch", "patch"),
    ("validatingwebhookconfigurations", "get", "list", "watch", "patch"),
}


SECRETS = {("secrets", "get", "list", "watch", "patch")}
EXISTING = {
    "certificates": {"mode": "existingSecret", "existingSecret": {"name": "mine", "caBundle": "x"}}
}


@pytest.mark.parametrize(
    ("values", "rights"),
    [
        pytest.param({}, RIGHTS | FENCED | SECRETS, id="by default"),
        pytest.param(EXISTING, RIGHTS | FENCED, id="no certificates of our own"),
        pytest.param(
            {"certificates": {"mode": "certManager"}}, RIGHTS | FENCED, id="cert-manager's"
        ),
        pytest.param({"fence": {"accounts": False}}, RIGHTS | SECRETS, id="no fence, so no pods"),
    ],
)
def test_the_webhook_has_no_right_that_it_does_not_need(helm, values, rights):
    assert rights_of_the_webhook(helm.render(values)) == rights


def test_bindings_wait_for_nobody_and_exempt_namespaces_stay_exempt(helm):
    found = binding_webhook(helm.render({"exemptNamespaces": ["infra-*"]}))
    (exempt,) = found["matchConditions"]
    assert exempt["expression"] == "!request.namespace.matches('^(infra-.*)$')"
    assert (found["failurePolicy"], found["timeoutSeconds"]) == ("Ignore", 2)
    assert "matchConditions" not in binding_webhook(helm.render({"exemptNamespaces": ["infra"]}))


@pytest.mark.parametrize("mode", ["self", "certManager", "existingSecret"])
def test_nobody_who_reads_the_chart_knows_where_bindings_go(helm, mode):
    objects = helm.render({"certificates": {**EXISTING["certificates"], "mode": mode}})
    assert "path" not in binding_webhook(objects)["clientConfig"]["service"]


@pytest.mark.parametrize("kind", KINDS)
def test_of_the_two_entries_for_pods_only_the_first_makes_anybody_wait(rendered, kind):
    demand, advice, *_ = one(rendered, kind)["webhooks"]
    assert advice["name"] == "advise.vramwarden.io"
    assert (advice["failurePolicy"], advice["timeoutSeconds"]) == ("Ignore", 2)
    assert demand["failurePolicy"] == "Fail"
    differing = {key for key in demand if demand[key] != advice[key]}
    by_selector = set() if kind.startswith("Mutating") else {"objectSelector", "rules"}
    assert differing == {"name", "matchConditions", "failurePolicy", "timeoutSeconds"} | by_selector


def test_cert_manager_issues_for_the_service_into_what_is_mounted(helm):
    objects = helm.render({"certificates": {"mode": "certManager"}})
    certificate = one(objects, "Certificate", "vramwarden-webhook")
    service = one(objects, "Service")["metadata"]
    assert f"{service['name']}.{service['namespace']}.svc" in certificate["spec"]["dnsNames"]
    volumes = one(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]
    mounted = [volume["secret"]["secretName"] for volume in volumes if "secret" in volume]
    assert mounted == [certificate["spec"]["secretName"], "vramwarden-key"]
    for kind in KINDS:
        annotations = one(objects, kind)["metadata"]["annotations"]
        assert annotations["cert-manager.io/inject-ca-from"] == f"{NAMESPACE}/vramwarden-webhook"
        assert "caBundle" not in webhook(objects, kind)["clientConfig"]


@pytest.mark.parametrize("version", ["1.30.14", "1.31.0-alpha.1", "1.31.5-gke.100", "1.40.0"])
def test_a_cluster_before_1_31_is_rejected(helm, version):
    if version < "1.31":
        with pytest.raises(HelmError, match=r"incompatible with Kubernetes v1\.30\.14"):
            helm.render(None, "--kube-version", version)
    else:
        assert helm.render(None, "--kube-version", version)


def test_who_applies_all_that_is_rendered_gets_each_object_once(rendered):
    names = [(thing["kind"], thing["metadata"]["name"]) for thing in rendered]
    assert len(set(names)) == len(names)


def test_the_agent_sees_the_gpus_and_nothing_else_of_the_node(rendered):
    pod = one(rendered, "DaemonSet", "vramwarden-agent")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert env["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert env["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    assert not {"hostPID", "hostIPC", "hostNetwork"} & pod.keys()
    assert all("hostPath" not in volume for volume in pod["volumes"])
    assert {"operator": "Exists"} in pod["tolerations"]


def test_prometheus_reads_the_webhook_at_a_port_of_its_service(helm):
    objects = helm.render({"serviceMonitor": {"enabled": True}})
    (endpoint,) = one(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in one(objects, "Service")["spec"]["ports"]}


@pytest.mark.parametrize("name", [WEBHOOK_CONFIGURATION, "zzz-last"])
def test_the_name_of_the_configurations_reaches_all_that_writes_them(live_helm, name):
    chosen = {} if name == WEBHOOK_CONFIGURATION else {"configurationName": name}
    objects = live_helm.render({"webhook": chosen}, "--dry-run=server")
    found = [thing for thing in objects if thing["kind"] in KINDS]
    assert {(thing["kind"], thing["metadata"]["name"]) for thing in found} == {
        (kind, name) for kind in KINDS
    }
    assert len(found) == 2 * len(KINDS)  # including hooks that remove kinds
    rules = one(objects, "ClusterRole", "vramwarden-webhook")["rules"]
    (names,) = (
        rule["resourceNames"]
        for rule in rules
        if rule["apiGroups"] == ["admissionregistration.k8s.io"]
    )
    assert names == [name]
    (container,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert f"--webhook-configuration={name}" in container["args"]


def test_each_object_is_rendered_once_also_where_kinds_are_named_without_a_cluster(helm):
    """Argo CD renders this way, and keeps the last object of a name, even if it is a hook."""
    names = [
        (thing["kind"], thing["metadata"].get("namespace"), thing["metadata"]["name"])
        for thing in helm.render(None, "--api-versions", "v1/Pod")
    ]
    assert [name for name in names if names.count(name) > 1] == []


def test_every_file_of_the_folder_is_named_in_the_readme():
    readme = (DEPLOY / "README.md").read_text()
    for path in DEPLOY.iterdir():
        if path.name not in {"README.md", "__pycache__"}:
            assert f"({path.name})" in readme, path.name


def test_webhook_and_agent_know_where_the_documentation_is_if_it_has_an_address(helm):
    def known(values):
        objects = helm.render(values)
        containers = (
            one(objects, kind, name)["spec"]["template"]["spec"]["containers"][0]
            for kind, name in (
                ("Deployment", "vramwarden-webhook"),
                ("DaemonSet", "vramwarden-agent"),
            )
        )
        variables = [entry for found in containers for entry in found.get("env", ())]
        return [
            variable["value"] for variable in variables if variable["name"] == DOCUMENTATION_URL_ENV
        ]

    url = "https://docs.example/{page}.html"
    assert known({"documentationURL": url}) == [url, url]
    assert known({}) == []


EMERGENCY = (
    "kubectl delete mutatingwebhookconfigurations,validatingwebhookconfigurations"
    " -l app.kubernetes.io/name=vramwarden"
)


def test_the_command_for_emergencies_names_what_stands_in_the_way(rendered):
    for text in (
        (DEPLOY / "outage.md").read_text(),
        (CHART / "templates" / "NOTES.txt").read_text(),
    ):
        assert EMERGENCY in text
    for kind in KINDS:
        key, _, value = EMERGENCY.rsplit(" ", 1)[1].partition("=")
        assert one(rendered, kind)["metadata"]["labels"][key] == value
