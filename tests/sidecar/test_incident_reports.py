"""Reports of the kubelet's probes about incidents; each failing probe's output becomes an Event."""

import pytest

GUARDING = [0, "guarding"]
STOPPED = "stopping a process: over the VRAM cap on GPU GPU-a: process "
REPORTS = "; nothing is stopped: the policy only reports (onExcess: Report)"


@pytest.mark.parametrize(
    ("how", "settings", "until", "code", "begins", "ends"),
    [
        pytest.param("plain", {}, "memory came back", -15, STOPPED, "", id="it ends"),
        pytest.param(
            "stays", {"VRAM_GRACE": "0.1s"}, "memory came back", -9, STOPPED, "", id="it is killed"
        ),
        pytest.param(
            "plain", {"VRAM_ON_EXCESS": "Report"}, "would stop a process", None,
            STOPPED.replace("stopping", "would stop"), REPORTS, id="it would be stopped",
        ),
    ],
)  # fmt: skip
def test_the_next_probe_reports_why_a_process_is_stopped_and_the_one_after_it_passes(
    how, settings, until, code, begins, ends, pod
):
    def incident(p, how, settings, until):
        hog = p.process(how)
        p.holds(hog, 500)
        p.guard(**settings)
        before = p.probe()
        p.holds(hog, 1200)
        p.wait_for(until)
        p.observations(5)
        probes = [p.probe() for _ in range(3)]
        return before, probes, p.termination_message.strip(), p.left(), hog.code

    before, probes, message, left, ended = pod.run(incident, how, settings, until)
    assert (message.startswith(begins), message.endswith(ends)) == (True, True), message
    assert [before, *probes] == [GUARDING, [1, message], GUARDING, GUARDING]
    assert left == ["heartbeat", "passed", "reported", "verdict"]
    assert ended == code


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


@pytest.mark.parametrize(("user", "left"), [(None, ["heartbeat", "passed"]), (1234, None)])
def test_only_a_pod_whose_processes_cannot_be_stopped_is_reported_at_its_start(user, left, pod):
    def incident(p, user):
        p.process("stays", user=1235)
        p.guard(user=user)
        return [p.probe() for _ in range(3)], p.termination_message.strip(), p.left()

    probes, message, found = pod.run(incident, user)
    if left is None:
        assert message.startswith("self-test: We are user 1234 without CAP_KILL")
        assert probes == [GUARDING, [1, message], GUARDING]
    else:
        assert (probes, found) == ([GUARDING] * 3, left)


def test_a_run_folder_that_takes_no_verdict_costs_the_report_and_nothing_else(pod):
    def incident(p):
        hog, stubborn = p.process("plain"), p.process("stays")
        p.guard(VRAM_GRACE="0.1s")
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
        p.script("driver 550.163.01\nhold nvmlInitWithFlags")
        p.enforcer = p.start()
        p.wait_until(lambda: p.calls("held"))
        waiting = p.waiting_probe()
        p.script("driver 550.163.01")
        return waiting(), p.end(), p.events("self-test")[0]["why"], p.left()

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
    """A startup probe that waits returns early: it reports before the program ends."""

    def incident(p, script, settings):
        p.script(script)
        p.enforcer = p.start(constants="program._PROBED_WITHIN_S = 600", **settings)
        p.wait_until(lambda: p.events("self-test"))
        said = p.probe("startup", wait_s=600)
        before = p.enforcer.poll()
        p.enforcer.kill()
        p.end()
        return before, said, p.probe("startup")

    before, (failed, said), (again, words) = pod.run(incident, script, settings)
    assert (before, failed, again) == (None, 1, 1)
    assert said.startswith(f"the self-test failed: {why}")
    assert words.startswith(
        f"not guarding yet: the self-test has not finished; the one before failed: {why}"
    )


def test_a_self_test_that_passes_takes_an_older_failure_away(pod):
    def incident(p):
        p.script("driver 550.163.01")
        p.guard()
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
