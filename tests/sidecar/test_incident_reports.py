"""What the kubelet's probes report of an incident: it makes an Event of each failure's words."""

import time

import pytest

from tests.sidecar.incident_scene import NOT_PROBED

GUARDING = [0, "guarding"]


def test_the_next_probe_reports_why_a_process_was_stopped_and_the_one_after_it_passes(pod):
    def incident(p):
        hog = p.process("plain")
        p.holds(hog, 500)
        p.guard()
        before = p.probe()
        p.holds(hog, 1200)
        p.wait_for("memory came back")
        return before, [p.probe() for _ in range(3)], p.termination_message.strip(), p.left()

    before, probes, message, left = pod.run(incident)
    assert message.startswith("stopping a process: over the VRAM cap on GPU GPU-a: process ")
    assert [before, *probes] == [GUARDING, [1, message], GUARDING, GUARDING]
    assert left == ["heartbeat", "passed", "reported", "verdict"]


def test_a_second_verdict_waits_until_a_probe_has_passed(pod):
    def incident(p):
        p.guard()
        p.probe()
        p.script("fail * 999")
        p.wait_for("cannot measure")
        first = p.probe()
        p.script()
        p.wait_for("measuring again")
        return first, [p.probe() for _ in range(3)]

    (failed, said), (passed, reported, last) = pod.run(incident)
    assert failed == 1
    assert said.startswith("cannot measure: ")
    again = [1, "measuring again: the driver reports every process's memory"]
    assert [passed, reported, last] == [GUARDING, again, GUARDING]


def test_of_two_verdicts_between_probes_the_last_is_reported(pod):
    def incident(p):
        p.guard()
        p.probe()
        for who in ("one", "two"):
            hog = p.process("plain")
            p.holds(hog, 1200)
            p.wait_for("memory came back", 1 if who == "one" else 2)
        return [p.probe() for _ in range(3)], p.termination_message.strip()

    probes, message = pod.run(incident)
    assert probes == [[1, message], GUARDING, GUARDING]


def test_a_process_that_is_killed_is_reported_by_why_it_was_to_end(pod):
    def incident(p):
        hog = p.process("stays")
        p.guard(VRAM_GRACE="0.5s")
        p.probe()
        p.holds(hog, 1200)
        p.wait_for("memory came back")
        return p.probe(), p.messages[1:3], p.events("stopping a process")[0]["why"]

    said, messages, why = pod.run(incident)
    assert messages == ["stopping a process", "killing a process"]
    assert said == [1, f"stopping a process: {why}"]


def test_a_pod_that_had_to_restart_is_reported_once_its_enforcer_is_back(pod):
    def incident(p):
        p.guard(VRAM_WHEN_BLIND="Terminate")
        p.script("fail * 999")
        code, message = p.end(), p.termination_message.strip()
        p.heartbeat.unlink()
        p.script()
        p.guard()
        return code, message, p.probe("startup"), [p.probe() for _ in range(3)]

    code, message, startup, probes = pod.run(incident)
    assert (code, startup) == (88, GUARDING)
    assert message.startswith("the pod must restart: ")
    assert probes == [GUARDING, [1, message], GUARDING]


def test_a_pod_whose_processes_cannot_be_stopped_is_reported_at_its_start(pod):
    def incident(p):
        p.process("stays", user=1235)
        p.guard(user=1234)
        return [p.probe() for _ in range(3)], p.termination_message.strip()

    probes, message = pod.run(incident)
    assert message.startswith("self-test: We are user 1234 without CAP_KILL")
    assert probes == [GUARDING, [1, message], GUARDING]


def test_a_pod_that_is_guarded_as_it_should_be_has_nothing_to_report(pod):
    def incident(p):
        p.guard()
        return [p.probe() for _ in range(3)], p.left()

    assert pod.run(incident) == [[GUARDING] * 3, ["heartbeat", "passed"]]


def test_a_run_folder_that_takes_no_verdict_costs_the_report_and_nothing_else(pod):
    def incident(p):
        hog, stubborn = p.process("plain"), p.process("stays")
        p.guard(VRAM_GRACE="0.5s")
        for name in ("verdict.new", "verdict"):
            (p.heartbeat.parent / name).mkdir()
        p.probe()
        p.holds(hog, 1200)
        p.wait_for("memory came back")
        (p.heartbeat.parent / "verdict.new").rmdir()
        p.holds(stubborn, 1200)
        p.wait_for("memory came back", 2)
        return [p.probe() for _ in range(2)], hog.wait(), stubborn.wait(), p.messages

    probes, *codes, messages = pod.run(incident)
    assert (probes, codes) == ([GUARDING] * 2, [-15, -9])
    assert "stopping a process" in messages


def test_a_startup_probe_that_waits_says_why_the_self_test_failed(pod):
    def incident(p):
        p.script("driver 550.163.01\ndelay nvmlInitWithFlags 2000")
        p.enforcer = p.start(constants=NOT_PROBED)
        p.wait_until(lambda: p.calls("nvmlInitWithFlags"))
        said = p.probe("startup", wait_s=4)
        return said, p.end(), p.events("self-test")[0]["why"], p.left()

    (failed, said), code, why, left = pod.run(incident)
    assert (failed, code, left) == (1, 70, ["bell", "failure"])
    assert said.startswith("not guarding yet: the self-test has not finished; then: ")
    assert said.endswith(f" failed: {why}")


@pytest.mark.parametrize(
    ("script", "settings", "why"),
    [("driver 550.163.01", {}, "Driver 550.163.01"), ("", {"VRAM_GRACE": "soon"}, "VRAM_GRACE: ")],
    ids=["driver", "settings"],
)
def test_a_self_test_that_fails_at_once_is_there_for_the_next_probe(pod, script, settings, why):
    """And a startup probe that may wait does not: it answers before the program ends."""

    def incident(p, script, settings):
        p.script(script)
        p.enforcer = p.start(**settings)
        p.wait_until(lambda: p.events("self-test"))
        time.sleep(1)  # the period of startup probes
        said = p.probe("startup", wait_s=20)
        return p.enforcer.poll(), said, p.end()

    before, (failed, said), code = pod.run(incident, script, settings)
    assert (before, failed, code) == (None, 1, 70)
    assert said.startswith(f"the self-test failed: {why}")


def test_wrong_settings_are_what_a_startup_probe_says(pod):
    def incident(p):
        p.guard(VRAM_GRACE="soon", constants=NOT_PROBED)
        return p.end(), p.probe("startup")

    code, (failed, said) = pod.run(incident)
    assert (code, failed) == (70, 1)
    assert "the self-test has not finished; the one before failed: VRAM_GRACE: " in said


def test_a_self_test_that_passes_takes_an_older_failure_away(pod):
    def incident(p):
        p.script("driver 550.163.01")
        p.guard(constants=NOT_PROBED)
        p.end()
        before = p.left()
        p.script()
        p.guard()
        return before, p.left(), p.probe("startup")

    assert pod.run(incident) == [["failure"], ["heartbeat"], GUARDING]


def test_a_self_test_by_hand_tells_the_probes_nothing(pod):
    def incident(p):
        p.guard()
        p.probe()
        p.script("driver 550.163.01")
        wrong = [p.start("--self-test").wait(), p.start("--self-test", VRAM_GRACE="soon").wait()]
        p.script()
        before = p.left()
        p.process("stays", user=1235)
        right = [p.start("--self-test", user=user).wait() for user in (1234, None)]
        abilities = [event["ability"] for event in p.events("self-test")[-2:]]
        return wrong, before, right, abilities, p.left(), p.probe()

    left = ["heartbeat", "passed"]
    abilities = ["observe", "full"]
    assert pod.run(incident) == [[70, 70], left, [0, 0], abilities, left, GUARDING]


def test_where_the_policy_only_reports_who_is_over_lives_and_a_probe_says_what_would_be(pod):
    def incident(p):
        hog = p.process("plain")
        p.holds(hog, 500)
        p.guard(VRAM_ON_EXCESS="Report")
        before = p.probe()
        p.holds(hog, 1200)
        p.wait_for("would stop a process")
        p.observations(5)
        probes = [p.probe() for _ in range(2)]
        return before, probes, p.termination_message.strip(), p.events(), hog.code

    before, probes, message, events, code = pod.run(incident)
    assert code is None
    assert [event["msg"] for event in events] == ["self-test", "would stop a process"]
    assert message == f"would stop a process: {events[1]['why']}"
    assert [before, *probes] == [GUARDING, [1, message], GUARDING]
    assert message.endswith("; nothing is stopped: the policy only reports (onExcess: Report)")
