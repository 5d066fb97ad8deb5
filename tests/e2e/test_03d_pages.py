"""What pages ask their readers to run and only a kubelet answers: logs, and what runs in a pod."""

from __future__ import annotations

from tests.e2e.node import NODE
from tests.e2e.pods import IMAGE, holding, pod
from tests.support.ledger import commands_of
from tests.support.readers import Reader


def test_the_commands_run(gpu_node, agent, team, tmp_path):
    team.create(pod("held", "1Gi", holding("forever")))
    team.wait_ready("held")
    here = {
        "AGENT": agent.ready()["metadata"]["name"],
        "NODE": NODE,
        "POD": f"held -n {team.namespace}",
        "busybox": IMAGE,
    }
    reader = Reader(tmp_path, gpu_node.kubeconfig, here)
    said = {command: reader.run(command) for _, command in commands_of(__file__)}
    (tags,) = [one for command, one in said.items() if "-o tags" in command]
    assert "k8s.io/cluster-autoscaler/node-template/" in tags
    team.delete_pod("held")
