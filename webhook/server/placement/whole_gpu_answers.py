"""Answers to node agents that ask which pods with whole GPUs run on their node."""

from __future__ import annotations

from webhook.adapters.kube.placement import PlacementApi, Question
from webhook.core.placement.assignment_codec import MOST_NAMED_PODS, WholeGpuPods
from webhook.server.placement.assignment_lists import AssignmentLists
from webhook.server.placement.node_queue import AnswerRequest


class WholeGpuAnswers:
    """Writes the answers to questions of node agents into the assignment list of their node."""

    def __init__(self, api: PlacementApi, lists: AssignmentLists) -> None:
        self._api = api
        self._lists = lists

    def answer(self, question: Question) -> None:
        """Answer in the node's list, unless another replica did; raises KubeError."""
        stored = self._api.read_list(question.node)
        if stored.answer is None or stored.answer.asked != question.asked:
            names = self._api.list_whole_gpu_pods(question.node)
            whole = WholeGpuPods(question.asked, len(names), tuple(names[:MOST_NAMED_PODS]))
            request = AnswerRequest(whole=whole)
            self._lists.submit(question.node, request)
            self._lists.wait(request.answer)
