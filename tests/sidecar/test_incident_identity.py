"""A number changes hands: whoever has it now is not whom the figures speak of."""

import time


def test_the_next_owner_of_a_number_between_look_and_signal_is_not_signalled(pod):
    def incident(p):
        # The second GPU's answer is slow: between it and the first one's is time to die.
        p.script(gpus="ab")
        hog = p.process("plain")
        p.holds(hog, 1200)
        p.log.touch()
        p.guard()
        p.script("delay nvmlDeviceGetMemoryInfo_v2 1000 gpu=1", gpus="ab")
        p.log.write_text("")
        slow = ["nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMemoryInfo_v2"]
        p.wait_until(lambda: p.calls()[-2:] == slow)
        p.pause()
        assert p.messages == ["self-test"], "too late: it has observed again already"
        new = p.reuse(hog)
        p.holds(new, 900)
        p.script(gpus="ab")
        p.go_on()
        p.wait_for("memory came back")
        p.observations(3)
        return hog.code, new.code, new.notes, p.messages

    stop = ["self-test", "stopping a process", "memory came back"]
    assert pod.run(incident) == [-9, None, [], stop]


def test_the_next_owner_of_a_number_is_not_killed_for_the_one_that_had_it(pod):
    def incident(p):
        hog = p.process("stays")
        p.holds(hog, 1200)
        p.guard(VRAM_GRACE="1s")
        p.wait_until(lambda: hog.notes)
        asked_s = time.monotonic()
        p.pause()
        assert p.messages[1:] == ["stopping a process"], "too late: the grace is over"
        new = p.reuse(hog)
        p.holds(new, 900)
        p.wait_until(lambda: time.monotonic() > asked_s + 1)
        p.go_on()
        back = p.wait_for("memory came back")
        p.observations(3)
        return back["pid"] == new.pid, new.code, new.notes, p.messages[1:]

    stop = ["stopping a process", "memory came back"]
    assert pod.run(incident) == [True, None, [], stop]
