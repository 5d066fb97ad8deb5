"""Timing of a review inside one commit, run by that commit's interpreter.

It imports nothing of the bench, since older commits have other module names. Its argument is a JSON
list of cases: [title, path of a recorded review, phase, whether the pod is translated first]. Each
line of its input is a number of calls, and each line of its output the mean time per call: {title:
{part: µs}}. The first line of its output is the package's path.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from functools import partial
from pathlib import Path

import jsonpatch

import webhook
from webhook.adapters.review_json import read_review, write_review

try:
    from webhook.adapters.policy.files import load_policy, shipped_policy_path
    from webhook.core.admission.decide import Phase, decide
except ImportError:
    from webhook.adapters.policy_files import load_policy, shipped_policy_path

    from webhook.core.admission import Phase, decide

KNOWN = (load_policy(shipped_policy_path(), enforcer_image="bench"),)
try:
    from webhook.core.policy import cluster
except ImportError:
    pass  # in older commits, the policy has the cluster
else:
    unknown = getattr(cluster, "UNKNOWN_CLUSTER", None) or getattr(cluster, "UNKNOWN")  # noqa: B009
    KNOWN = (*KNOWN, unknown)


def answer(body, phase):
    request = read_review(body)
    return write_review(request.uid, decide(request, *KNOWN, phase))


def translated(body):
    """Return the review with the pod as mutated by this commit."""
    review = json.loads(body)
    patch = json.loads(answer(body, Phase.MUTATE))["response"]["patch"]
    pod = review["request"]["object"]
    review["request"]["object"] = jsonpatch.apply_patch(pod, json.loads(base64.b64decode(patch)))
    return json.dumps(review, separators=(",", ":")).encode()  # as the API server writes it


def parts(path, phase, is_translated):
    body = Path(path).read_bytes()
    if is_translated:
        body = translated(body)
    request = read_review(body)
    decision = decide(request, *KNOWN, Phase[phase])
    return {
        "read": partial(read_review, body),
        "decide": partial(decide, request, *KNOWN, Phase[phase]),
        "write": partial(write_review, request.uid, decision),
    }


def microseconds(call, number):
    """Return the CPU time of a call in µs, which does not depend on other processes."""
    started_ns = time.process_time_ns()
    for _ in range(number):
        call()
    return (time.process_time_ns() - started_ns) / number / 1e3


def main():
    cases = {title: parts(*case) for title, *case in json.loads(sys.argv[1])}
    print(webhook.__file__, flush=True)
    for line in sys.stdin:
        figures = {
            title: {part: microseconds(call, int(line)) for part, call in calls.items()}
            for title, calls in cases.items()
        }
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
