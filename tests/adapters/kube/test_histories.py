"""Histories as they are stored: what stands in an object of another workload counts for nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tests.core.seeing.test_histories import LLAMA
from webhook.adapters.kube.histories import HistoriesApi
from webhook.core.seeing.histories import History, write_history
from webhook.core.seeing.workloads import Workload

if TYPE_CHECKING:
    from webhook.adapters.kube.client import Kube


class OneObject:
    """An API server that answers every name with the same object."""

    def __init__(self, found):
        self.found = found

    def find(self, _path):
        return self.found


def test_a_history_is_read_with_its_version_and_only_if_it_is_of_that_workload():
    stored = write_history(LLAMA)
    stored["metadata"]["resourceVersion"] = "7"
    api = HistoriesApi(cast("Kube", OneObject(stored)))
    own = api.read("team-a", Workload("Deployment", "llama"))
    assert (len(own.history.runs), own.version) == (len(LLAMA.runs), "7")
    other = api.read("team-a", Workload("Job", "embed"))
    assert (other.history, other.version) == (History("team-a", "Job", "embed"), "7")
