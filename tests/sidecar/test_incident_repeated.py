"""The cap is exceeded repeatedly: finally a whole container ends, and then the pod."""


def test_the_fourth_stop_is_of_all_that_the_victims_container_runs(pod):
    def incident(p):
        p.contain(1, "f")
        restless = [p.process("plain", container="a") for _ in range(4)]
        supervisor = p.process("stays", container="a", children=1)
        neighbour = p.process("stays", container="b")
        p.holds(neighbour, 400)
        for item in restless:
            p.holds(item, 700)
        p.guard()
        p.wait_for("memory came back", 4)
        p.observations(3)
        left = neighbour.code or neighbour.notes
        return [item.wait() for item in [*restless, supervisor]], left, p.messages[1:], p.events()

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


def test_a_supervisor_that_starts_what_is_stopped_again_and_holds_nothing_ends_for_good(pod):
    def incident(p):
        p.contain(1, "f")
        neighbour = p.process("stays", container="b")
        p.holds(neighbour, 400)
        supervisor = p.process("restarts", user=1000, cage="a")
        p.guard(VRAM_GRACE="0.2s")
        p.wait_for("memory came back", 4)
        p.observations(5)
        left = [p.caged("a"), neighbour.code or neighbour.notes]
        children = [note for note in supervisor.notes if note.isdigit()]
        asked = supervisor.notes.count("SIGTERM")
        return supervisor.wait(), len(children), asked, left, p.messages[1:]

    code, children, asked, left, messages = pod.run(incident)
    assert (code, children, asked) == (-9, 4, 3)
    assert left == [[], []]
    assert messages == [
        *["stopping a process", "killing a process", "memory came back"] * 3,
        "stopping a container",
        "memory came back",
    ]


def test_what_breeds_ends_as_well_and_so_does_a_pod_that_does(pod):
    """A fork bomb within a kubelet's process limit ends its container, the next one the pod."""

    def incident(p):
        p.contain(1, "f")
        neighbour = p.process("plain", container="b")
        restless = [p.process("plain", cage="a") for _ in range(3)]
        for item in restless:
            p.holds(item, 1100)
        p.guard()
        p.wait_for("memory came back", 3)
        p.process("breeds", user=1000, cage="a")
        p.wait_for("stopping a container")
        p.wait_until(lambda: not p.caged("a"))
        breeds = p.process("breeds", user=1000, cage="b")
        code = p.end()
        p.wait_until(lambda: not p.caged("b"))
        return code, breeds.wait(), neighbour.wait(), p.messages[-1]

    assert pod.run(incident) == [88, -9, -9, "the pod must restart"]
