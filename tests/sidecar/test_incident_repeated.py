"""A cap that is exceeded again and again: at last a whole container ends, and then the pod."""


def test_the_fourth_stop_is_of_all_that_the_victims_container_runs(pod):
    def incident(p):
        p.contain(1, "f")
        restless = [p.process("plain", container="a") for _ in range(4)]
        supervisor = p.process("stays", container="a", children=1)
        neighbour = p.process("stays", container="b")
        p.holds(neighbour, 400)
        for one in restless:
            p.holds(one, 700)
        p.guard()
        p.wait_for("memory came back", 4)
        p.observations(3)
        left = neighbour.code or neighbour.notes
        return [one.wait() for one in [*restless, supervisor]], left, p.messages[1:], p.events()

    codes, left, messages, events = pod.run(incident)
    assert codes == [-9, -15, -15, -15, -9]
    assert left == []
    assert messages == [
        *["stopping a process", "memory came back"] * 3,
        "stopping a container",
        "memory came back",
    ]
    (stop,) = [event for event in events if event["msg"] == "stopping a container"]
    assert "3 stops were not enough in " in stop["why"]
    assert ", so all processes of its container end; " in stop["why"]
