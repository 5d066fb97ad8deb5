"""A fake API server with scripted responses to reads and watches, which then ends the test."""

from __future__ import annotations

import json

from tests.support.api_server import ApiServer
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.follow import Failed

A_MINUTE = 60.0


class Enough(BaseException):
    """Raised to end functions that run forever."""


def end(_request):
    raise Enough


def an_object(version, name="a"):
    return {"metadata": {"name": name, "resourceVersion": version}}


def an_event(kind, version, name="a"):
    return kind, an_object(version, name)


def simplify(report):
    """Return a report with each failure replaced by the error's code, or by a bug's type."""
    if not isinstance(report, Failed):
        return report
    error = report.error
    return Failed(error.code if isinstance(error, KubeError) else type(error))


class Script(ApiServer):
    """API server with scripted responses, and a clock that the script advances.

    | response | forms |
    | --- | --- |
    | to a read | an object; a version and the names of a list; or as for `ApiServer.fails` |
    | to a watch | a list of events, seconds that pass, and status codes; or as for `fails` |

    Status 0 in a watch breaks the connection.
    """

    def __init__(self, reads, watches=()):
        super().__init__()
        self.clock_s, self.slept = 1000.0, []
        self.fails("watch=true", *map(self._watched, watches), end)
        self.fails("GET", *map(_read, reads), end)

    def _watched(self, events):
        return (lambda _: (200, self._play(events))) if isinstance(events, list) else events

    def _play(self, events):
        lines = b""
        for event in events:
            if isinstance(event, float):
                self.clock_s += event
            elif event == 0:
                lines += b"{\n"
            else:
                kind, item = event if isinstance(event, tuple) else ("ERROR", {"code": event})
                lines += json.dumps({"type": kind, "object": item}).encode() + b"\n"
        return lines

    def sleep(self, pause_s):
        self.slept.append(pause_s)
        self.clock_s += pause_s

    @property
    def reads(self):
        return [(found.path, found.query) for found in self.asked if "watch" not in found.query]

    @property
    def watches(self):
        return [(found.path, found.query) for found in self.asked if "watch" in found.query]

    @property
    def watch_versions(self):
        return [query["resourceVersion"] for _, query in self.watches]


def _read(answer):
    if isinstance(answer, tuple) and isinstance(answer[0], str):
        version, *names = answer
        items = [an_object("1", name) for name in names]
        return 200, {"metadata": {"resourceVersion": version}, "items": items}
    return (200, answer) if isinstance(answer, dict) else answer
