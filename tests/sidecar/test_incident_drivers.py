"""Which drivers the program works with, and what it says where it does not."""

NEEDED = "565.57.01 or newer is needed."
NODES = f"lists host PIDs, not the pod's; {NEEDED}"
BLIND = f"does not report processes' memory in a container; {NEEDED}"
LAYOUT = f"returns process lists in a layout of its own; {NEEDED}"
WORKS = "reports processes' memory in a container."
DRIVERS = {
    "515.105.01": NODES,
    "535.43.02": LAYOUT,
    "535.104.05": NODES,
    "535.129.03": BLIND,
    "550.163.01": BLIND,
    "560.35.03": BLIND,
    "565.57.01": WORKS,
    "570.86.15": WORKS,
    "580.65.06": WORKS,
    "595.45.04": WORKS,
    "615.12": WORKS,
}


def test_each_driver_passes_the_self_test_or_ends_it_with_the_reason(pod):
    def incident(p, versions):
        found = {}
        for version in versions:
            p.script(f"driver {version}")
            code = p.start("--self-test").wait()
            found[version] = [code, p.events()[-1], p.termination_message]
        return found, len(p.events())

    found, events = pod.run(incident, list(DRIVERS))
    assert events == len(DRIVERS)
    for version, words in DRIVERS.items():
        code, event, message = found[version]
        why = f"Driver {version} {words}"
        reported = [event["msg"], event["level"], event["ability"], event["why"]]
        if words == WORKS:
            assert (code, reported) == (0, ["self-test", "info", "full", why])
        else:
            assert (code, reported) == (70, ["self-test", "error", "blind", why])
        assert message == f"self-test: {why}\n"


def test_a_driver_that_does_not_do_keeps_the_workload_from_starting_and_stops_nobody(pod):
    def incident(p):
        mine = p.process("stays")
        p.holds(mine, 1200)
        p.script("driver 550.163.01")
        p.guard()
        return p.end(), p.probe(), mine.code, mine.notes, p.messages

    before = f"the one before failed: Driver 550.163.01 {BLIND}"
    why = f"not guarding yet: the self-test has not finished; {before}"
    assert pod.run(incident) == [70, [1, why], None, [], ["self-test"]]
