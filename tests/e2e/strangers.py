"""Programs by other projects, NVIDIA's and HAMi's, on the tests' own node."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.images import programs_image
from tests.e2e.node import NODE, NODE_MANIFEST, NodeCluster
from tests.e2e.nvidia_runtime import LIBRARIES, UUIDS
from tests.e2e.pods import statuses
from tests.e2e.team import Team
from tests.support.cluster_programs import find_binary, free_port
from tests.support.other_programs import find

Json = dict[str, Any]
MIB = 2**20
STRATEGIC = "application/strategic-merge-patch+json"
PLUGIN_IMAGE = "localhost/nvidia-device-plugin:1"
PLUGIN = "nvidia-device-plugin"
TIME_SLICING = {
    "version": "v1",
    "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}},
}
"""The image has this file as /sliced."""
HAMI_RESOURCES = {
    "resourceCountName": "nvidia.com/gpu",
    "resourceMemoryName": "nvidia.com/gpumem",
    "resourceMemoryPercentageName": "nvidia.com/gpumem-percentage",
    "resourceCoreName": "nvidia.com/gpucores",
    "resourcePriorityName": "nvidia.com/priority",
    "defaultGPUNum": 1,
}
"""Default resources of HAMi's chart."""
HEEDS = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {
                            "key": "nvidia.com/gpu.deploy.device-plugin",
                            "operator": "NotIn",
                            "values": ["false"],
                        }
                    ]
                }
            ]
        }
    }
}
"""Node affinity in deploy/take-the-plugin-off.md for a DaemonSet that ignores the label."""


class Mock:
    """NVIDIA's mock of the driver library, as the containers of some pods see it."""

    def __init__(self, node: NodeCluster) -> None:
        self._node = node
        self._played: dict[Path, Json] = {}

    def hold(self, found: Json, used_bytes: int, *also: Json) -> None:
        """Make the first process of a pod use this much memory of the pod's GPU.

        The pod's containers see the process with its PID in the pod. The pods `also`, which see all
        GPUs, see it with its PID on the node.
        """
        outside, within = self._node.process_of(statuses(found)["main"]["containerID"])
        uuid = found["metadata"]["annotations"]["vramwarden.io/gpu"]
        for seen_by, gpu, pid in (
            (found, 0, within),
            *((other, UUIDS.index(uuid), outside) for other in also),
        ):
            held = {"pid": pid, "type": "C", "used_memory_mib": used_bytes // MIB}
            self.change(seen_by, gpu, memory={"used_bytes": used_bytes}, processes=[held])

    def change(self, found: Json, gpu: int, **how: object) -> None:
        """Change a GPU, given by index, as the pod's containers see it."""
        scene = self._scene(found["metadata"]["uid"])
        played = self._played.setdefault(scene, {})
        played[str(gpu)] = {**played.get(str(gpu), {}), **how}
        new = scene / "overrides.new"
        new.write_text(yaml.safe_dump({"devices": played}))
        new.rename(scene / "overrides.yaml")

    def _scene(self, uid: str) -> Path:
        scenes = (self._node.state / "scenes").glob("*/pod")
        (found,) = [scene.parent for scene in scenes if scene.read_text() == f"pod{uid}"]
        return found


class DevicePlugin:
    def __init__(self, system: Team, node: NodeCluster) -> None:
        self._team = system
        self._node = node

    def install(self, **environment: str) -> None:
        variables = {"NVIDIA_VISIBLE_DEVICES": "all", "LD_LIBRARY_PATH": f"/{LIBRARIES}"}
        sockets = "/var/lib/kubelet/device-plugins"
        container = {
            "name": PLUGIN,
            "image": PLUGIN_IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "command": [f"/bin/{PLUGIN}"],
            "env": [{"name": k, "value": v} for k, v in {**variables, **environment}.items()],
            "volumeMounts": [{"name": "sockets", "mountPath": sockets}],
        }
        spec = {
            "containers": [container],
            "dnsPolicy": "Default",
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
            "volumes": [{"name": "sockets", "hostPath": {"path": sockets}}],
        }
        labels = {"app": PLUGIN}
        self._team.create(
            {
                "apiVersion": "apps/v1",
                "kind": "DaemonSet",
                "metadata": {"name": PLUGIN},
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": spec},
                },
            }
        )

    def change(self, **spec: object) -> None:
        """Change the pod specification of the plugin."""
        change = {"spec": {"template": {"spec": spec}}}
        self._team.api.request("PATCH", self._path, change, content_type=STRATEGIC)

    def use_image(self, image: str) -> None:
        """Upgrade the plugin to an image."""
        self.change(containers=[{"name": PLUGIN, "image": image}])

    def uninstall(self) -> None:
        self._team.api.request("DELETE", self._path, propagationPolicy="Foreground")
        self._team.wait(
            "the plugin gone", lambda: not self._team.pods(labelSelector=f"app={PLUGIN}")
        )

    def pod(self) -> Json:
        return self._team.pod_of(PLUGIN)

    def wait_for(self, capacity: int, allocatable: int, resource: str = "nvidia.com/gpu") -> None:
        """Wait until the node has this capacity and this allocatable amount."""
        wanted = [str(capacity), str(allocatable)]

        def said() -> list[str]:
            status = self._node.api.get(NODE_MANIFEST)["status"]
            return [status[kind].get(resource, "0") for kind in ("capacity", "allocatable")]

        self._team.wait(f"{resource} {wanted}", lambda: said() == wanted)

    @property
    def _path(self) -> str:
        return f"/apis/apps/v1/namespaces/{self._team.namespace}/daemonsets/{PLUGIN}"


def plugin_image(folder: Path) -> Path:
    sliced = json.dumps(TIME_SLICING)
    program = str(find("NVIDIA_PLUGIN", PLUGIN))
    return programs_image(folder, PLUGIN_IMAGE, program, sliced=sliced)


def discovered(node: NodeCluster) -> dict[str, str]:
    """Return the labels that GPU feature discovery sets on a node with time-slicing."""
    driver = node.state / "driver"
    written, settings = node.state / "features", node.state / "sliced"
    settings.write_text(json.dumps(TIME_SLICING))
    node.run(
        *(
            "env",
            f"LD_LIBRARY_PATH={driver / LIBRARIES}",
            f"MOCK_NVML_CONFIG={driver / 'mock.json'}",
        ),
        *(str(find("NVIDIA_PLUGIN", "gpu-feature-discovery")), "--oneshot", "--no-timestamp"),
        *("--use-node-feature-api=false", f"--output-file={written}", f"--config-file={settings}"),
    )
    return dict(line.split("=", 1) for line in written.read_text().split())


def dra_driver(node: NodeCluster) -> AbstractContextManager[None]:
    """Run the node plugin of NVIDIA's DRA driver until the block ends."""
    driver, kubelet = node.state / "driver", node.state / "kubelet"
    smi = driver / "usr/bin/nvidia-smi"
    smi.parent.mkdir(exist_ok=True)
    smi.write_text("#!/bin/sh\n")
    smi.chmod(0o755)
    for name in ("plugins", "plugins_registry"):
        (kubelet / name).mkdir(exist_ok=True)
    return node.running(
        str(find("NVIDIA_DRA", "gpu-kubelet-plugin")),
        f"--kubeconfig={node.kubeconfig}",
        f"--node-name={NODE}",
        "--image-name=none",
        f"--nvidia-driver-root={driver}",
        f"--container-driver-root={driver}",
        f"--nvidia-cdi-hook-path={shutil.which('true')}",
        f"--cdi-root={node.state / 'cdi'}",
        f"--kubelet-plugins-directory-path={kubelet / 'plugins'}",
        f"--kubelet-registrar-directory-path={kubelet / 'plugins_registry'}",
        LD_LIBRARY_PATH=driver / LIBRARIES,
        MOCK_NVML_CONFIG=driver / "mock.json",
    )


class Hami:
    """HAMi's scheduler and webhook, for a separate node.

    The node is an object with the annotations of HAMi's device plugin; no kubelet starts its pods.
    """

    NODE = "hami1"
    GPUS = ("GPU-hami-0", "GPU-hami-1")
    SHARES = 10
    SCHEDULER = "hami-scheduler"

    def __init__(self, node: NodeCluster) -> None:
        self._node = node
        self._port = free_port()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run HAMi in the cluster until the block ends, without HAMi's webhook."""
        state, address = self._node.state, self._node.address
        devices = state / "hami-devices.yaml"
        devices.write_text(json.dumps({"nvidia": HAMI_RESOURCES}))
        names = [HAMI_RESOURCES[name] for name in HAMI_RESOURCES if name.endswith("Name")]
        extender = {
            "urlPrefix": f"https://{address}:{self._port}",
            "enableHTTPS": True,
            "tlsConfig": {"insecure": True},
            "filterVerb": "filter",
            "bindVerb": "bind",
            "nodeCacheCapable": True,
            "weight": 1,
            "httpTimeout": "30s",
            "managedResources": [{"name": name, "ignoredByScheduler": True} for name in names],
        }
        settings = state / "hami-scheduler.yaml"
        settings.write_text(
            json.dumps(
                {
                    "apiVersion": "kubescheduler.config.k8s.io/v1",
                    "kind": "KubeSchedulerConfiguration",
                    "clientConnection": {"kubeconfig": str(self._node.kubeconfig)},
                    "leaderElection": {"leaderElect": False},
                    "profiles": [{"schedulerName": self.SCHEDULER}],
                    "extenders": [extender],
                }
            )
        )
        gpus = [
            {
                "id": gpu,
                "index": number,
                "count": self.SHARES,
                "devmem": 40960,
                "devcore": 100,
                "type": "NVIDIA-NVIDIA A100-SXM4-40GB",
                "mode": "hami-core",
                "health": True,
            }
            for number, gpu in enumerate(self.GPUS)
        ]
        annotations = {
            "hami.io/node-nvidia-register": json.dumps(gpus),
            "hami.io/node-handshake": "Reported",
        }
        metadata = {"name": self.NODE, "labels": {"gpu": "on"}, "annotations": annotations}
        made = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        amounts = {"cpu": "8", "memory": "64Gi", "pods": "20", "nvidia.com/gpu": "20"}
        self._node.api.create({**made, "status": {"capacity": amounts, "allocatable": amounts}})
        with (
            self._node.running(
                str(find("HAMI", "scheduler")),
                f"--http_bind={address}:{self._port}",
                f"--cert_file={state / 'kube-apiserver.crt'}",
                f"--key_file={state / 'kube-apiserver.key'}",
                f"--scheduler-name={self.SCHEDULER}",
                f"--device-config-file={devices}",
                f"--metrics-bind-address={address}:{free_port()}",
                KUBECONFIG=self._node.kubeconfig,
            ),
            self._node.running(
                str(find_binary("kube-scheduler")), f"--config={settings}", "--secure-port=0"
            ),
        ):
            yield
        self._node.api.delete(made)

    def webhook(self, name: str) -> Json:
        """Return the webhook configuration of HAMi's chart; the name determines the order."""
        where = f"https://{self._node.address}:{self._port}/webhook"
        ca = base64.b64encode(self._node.ca_pem).decode()
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
        ignored = {"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [
                {
                    "name": "vgpu.hami.io",
                    "admissionReviewVersions": ["v1", "v1beta1"],
                    "clientConfig": {"url": where, "caBundle": ca},
                    "failurePolicy": "Fail",
                    "namespaceSelector": {"matchExpressions": [ignored]},
                    "objectSelector": {"matchExpressions": [ignored]},
                    "reinvocationPolicy": "Never",
                    "rules": [{**rule, "resources": ["pods"], "scope": "*"}],
                    "sideEffects": "None",
                    "timeoutSeconds": 10,
                }
            ],
        }
