"""A cap that is exceeded again and again: at last, all of a container's processes are stopped."""

THREE = "3 stops in 10 minutes were not enough, so all processes of "


def test_the_fourth_stop_is_of_all_that_the_victims_container_runs_on_the_gpu(pod):
    def incident(p):
        p.script(gpus="ab")
        p.contain(1, "f")
        restless = [p.process("plain", container="a") for _ in range(6)]
        neighbour, elsewhere = p.process("stays", container="b"), p.process(container="a")
        p.holds(neighbour, 400)
        p.holds(elsewhere, 400, gpu="GPU-b")
        for one in restless:
            p.holds(one, 700)
        p.guard()
        p.wait_for("memory came back", 6)
        p.observations(3)
        left = [one.code or one.notes for one in (neighbour, elsewhere)]
        return [one.wait() for one in restless], left, p.messages[1:], p.events()

    codes, left, messages, events = pod.run(incident)
    assert codes == [-15] * 6
    assert left == [[], []]
    assert messages == [
        *["stopping a process", "memory came back"] * 3,
        *["stopping a process"] * 3,
        *["memory came back"] * 3,
    ]
    stops = [event["why"] for event in events if event["msg"] == "stopping a process"]
    assert [f"{THREE}its container on this GPU end" in why for why in stops] == [
        *[False] * 3,
        *[True] * 3,
    ]
