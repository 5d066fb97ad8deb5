"""The label of free memory on a node of a real API server, from a stored assignment list."""

import pytest

from tests.agent.nodes import CONFIG_MAPS, FULL, RULES
from tests.support.cluster_programs import wait_until
from webhook.core.placement.assignment_codec import config_map_name, write_assignments
from webhook.core.placement.assignments import Assignment

LABEL = "vramwarden.io/gpu-memory-free-mib"
ALL_FREE = ["81300", "40340"]
UNREAD = "the list of who has which GPUs cannot be watched; free memory may be stale"


class Assignments:
    """The ConfigMap with a node's assignments."""

    def __init__(self, api, node):
        self._api = api
        metadata = {"name": config_map_name(node.name), "namespace": "default"}
        self.manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}

    def write(self, *taken):
        """Store assignments, each given as MiB and GPUs."""
        entries = {
            f"uid-{number}": Assignment(
                pod="ns/p", uuids=uuids, memory_bytes=mib * 2**20, since_s=0
            )
            for number, (uuids, mib) in enumerate(taken)
        }
        self._api.apply({**self.manifest, "data": write_assignments(entries)})

    def delete(self):
        self._api.delete(self.manifest)


@pytest.fixture
def assignments(control_plane, node):
    made = Assignments(control_plane.api, node)
    yield made
    made.delete()


@pytest.fixture
def free(node):
    """Return a function that waits for these labels of one and of two GPUs' free memory."""

    def read():
        labels = node.labels()
        return [labels.get(LABEL), labels.get(f"{LABEL}.2")]

    def wait(*wanted):
        wait_until(wanted, lambda: read() == list(wanted))

    return wait


def test_the_label_follows_the_list(make_agent, account, assignments, free):
    options = ("--namespace", "default")
    with make_agent(*options, kubeconfig=account([*RULES, CONFIG_MAPS])) as agent:
        free(*ALL_FREE)  # no list exists yet
        assignments.write((("GPU-a",), 60000), (("GPU-a", "GPU-b"), 20500))
        free("19456", "0")  # in steps of 1 GiB
        assignments.delete()
        free(*ALL_FREE)
        assignments.write((("GPU-b",), 40340))
        free("81300", "0")
        assert not [event for event in agent.events() if event["level"] in ("warning", "error")]


@pytest.mark.parametrize("verb", CONFIG_MAPS["verbs"])
def test_each_right_is_needed_and_its_absence_is_reported(verb, make_agent, account):
    verbs = [other for other in CONFIG_MAPS["verbs"] if other != verb]
    kubeconfig = account([*RULES, {**CONFIG_MAPS, "verbs": verbs}])
    with make_agent("--namespace", "default", kubeconfig=kubeconfig) as agent:
        assert f'cannot {verb} resource "configmaps"' in agent.wait_for(UNREAD)["why"]


def test_where_the_list_may_not_be_read_all_else_goes_on(make_agent, account, node, assignments):
    assignments.write((("GPU-a",), 60000))
    with make_agent("--namespace", "default", kubeconfig=account(RULES)) as agent:
        why = agent.wait_for(UNREAD)["why"]
        assert "configmaps" in why
        node.wait_for(FULL)
        assert LABEL not in node.labels()
        account([*RULES, CONFIG_MAPS])
        wait_until("the label", lambda: node.labels().get(LABEL) == "40340")
        assert len(agent.events(UNREAD)) == 1


def test_the_label_that_somebody_removed_comes_back(make_agent, node, assignments, free):
    assignments.write((("GPU-a",), 60000))
    with make_agent("--namespace", "default"):
        free("40340", "20480")
        node.patch({"metadata": {"labels": {LABEL: None}}})
        free("40340", "20480")


def test_one_scan_says_it_too(make_agent, assignments, node):
    assignments.write((("GPU-a",), 60000))
    done = make_agent("--namespace", "default").run("--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert node.labels()[LABEL] == "40340"


def test_one_scan_leaves_it_where_the_list_may_not_be_read(make_agent, account, node):
    done = make_agent(kubeconfig=account(RULES)).run("--once", POD_NAMESPACE="default")
    assert done.returncode == 0
    assert done.stderr.startswith("free memory: ")
    assert LABEL not in node.labels()
    assert node.amounts() == [FULL, FULL]
