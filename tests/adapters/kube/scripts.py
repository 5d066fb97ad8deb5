"""An API server that answers reads and watches in turn, and then ends the test."""

from __future__ import annotations

import json

from tests.support.api_server import ApiServer
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.follow import Failed

A_MINUTE = 60.0


class Enough(BaseException):
    """Ends what works forever."""


def end(_request):
    raise Enough


def an_object(version, name="a"):
    return {"metadata": {"name": name, "resourceVersion": version}}


def an_event(kind, version, name="a"):
    return kind, an_object(version, name)


def said(report):
    """Return a report, with a failure's code or a bug's type for the error itself."""
    if not isinstance(report, Failed):
        return report
    error = report.error
    return Failed(error.code if isinstance(error, KubeError) else type(error))


class Script(ApiServer):
    """Answers in turn with what is given, and keeps the time, which passes as it is told.

    A read is answered with an object, with a version and the names of those that are listed, or as
    `ApiServer.fails` does it. A watch as that, or with a list of events, seconds that pass, and as
    its end a code, 0 where it breaks off.
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
        for one in events:
            if isinstance(one, float):
                self.clock_s += one
            elif one == 0:
                lines += b"{\n"
            else:
                kind, thing = one if isinstance(one, tuple) else ("ERROR", {"code": one})
                lines += json.dumps({"type": kind, "object": thing}).encode() + b"\n"
        return lines

    def sleep(self, pause_s):
        self.slept.append(pause_s)
        self.clock_s += pause_s

    @property
    def read_by(self):
        """Path and query of each read."""
        return [(one.path, one.query) for one in self.asked if "watch" not in one.query]

    @property
    def watched_by(self):
        """Path and query of each watch."""
        return [(one.path, one.query) for one in self.asked if "watch" in one.query]

    @property
    def since(self):
        """From which versions was watched."""
        return [query["resourceVersion"] for _, query in self.watched_by]


def _read(answer):
    if isinstance(answer, tuple) and isinstance(answer[0], str):
        version, *names = answer
        items = [an_object("1", name) for name in names]
        return 200, {"metadata": {"resourceVersion": version}, "items": items}
    return (200, answer) if isinstance(answer, dict) else answer
