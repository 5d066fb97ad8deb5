"""Attacks on the enforcer by a tenant that runs as the same user."""

import resource


def test_a_process_of_the_tenants_own_is_not_taken_for_the_enforcer(pod):
    def incident(p):
        tenant = p.process("plain", cage="a")
        p.guard()
        p.enforcer.kill()
        p.end()
        over = p.probe()[1]
        p.forge(tenant.pid)
        return over, p.probe(), tenant.pid, str(p.heartbeat.parent)

    over, said, pid, folder = pod.run(incident)
    assert over.endswith("is over; no other has taken its place yet")
    whose = f"process {pid} is not of this container: the heartbeat in {folder} is not the"
    assert said == [1, f"{whose} enforcer's"]


def test_an_enforcer_without_descriptors_ends_and_says_why(pod):
    """prlimit(2) only requires the same user. A blind guard must not continue forever."""

    def incident(p):
        hog = p.process("stays")
        p.guard()
        resource.prlimit(p.enforcer.pid, resource.RLIMIT_NOFILE, (3, 3))
        return p.end(), p.messages, p.events()[-1]["why"], p.termination_message, hog.notes

    code, messages, why, message, notes = pod.run(incident)
    assert (code, messages, notes) == (88, ["self-test", "out of descriptors"], [])
    assert why == (
        "[Errno 24] Too many open files: '/proc/uptime': somebody lowered our limit, and we cannot "
        "see any process"
    )
    assert message.startswith("self-test: ")


def test_a_heartbeat_that_cannot_be_left_is_said_once_and_descriptors_are_still_watched(pod):
    def incident(p):
        p.guard()
        p.heartbeat.unlink()
        p.heartbeat.mkdir()
        p.wait_for("no heartbeat")
        (p.heartbeat / "file").write_text("")
        calls = len(p.calls())
        p.wait_until(lambda: len(p.calls()) > calls + 10)
        resource.prlimit(p.enforcer.pid, resource.RLIMIT_NOFILE, (3, 3))
        return p.end(), p.messages

    assert pod.run(incident) == [88, ["self-test", "no heartbeat", "out of descriptors"]]
