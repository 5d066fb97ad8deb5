"""A PID is reused: the figures do not belong to the new process."""

STOP = ["stopping a process", "memory came back"]


def test_the_next_owner_of_a_number_between_look_and_signal_is_not_signalled(pod):
    def incident(p):
        # Between the responses of the second GPU and of the first one the process can end.
        p.script(gpus="ab")
        hog = p.process("plain")
        p.holds(hog, 500)
        p.guard()
        for mib in (500, 1200, 1200):  # two observations in a row show the excess
            p.holds(hog, mib)
            p.hold("nvmlDeviceGetMemoryInfo_v2 gpu=1", gpus="ab")
        new = p.reuse(hog)
        p.holds(new, 900)
        p.script(gpus="ab")
        p.wait_for("memory came back")
        p.observations(3)
        return hog.code, new.code, new.notes, p.messages

    assert pod.run(incident) == [-9, None, [], ["self-test", *STOP]]


def test_the_next_owner_of_a_number_is_not_killed_for_the_one_that_had_it(pod):
    def incident(p):
        hog = p.process("stays")
        p.holds(hog, 1200)
        p.guard(VRAM_GRACE="1h")
        p.wait_until(lambda: hog.notes)
        p.pause()
        new = p.reuse(hog)
        p.holds(new, 900)
        p.later(3600)
        p.go_on()
        back = p.wait_for("memory came back")
        p.observations(3)
        return back["pid"] == new.pid, new.code, new.notes, p.messages[1:]

    assert pod.run(incident) == [True, None, [], STOP]
