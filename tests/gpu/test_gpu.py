"""The enforcer on a real NVIDIA GPU, in a PID namespace of its own."""

MIB = 2**20
CONTEXT_BYTES = 800 * MIB  # as in gpu_scene.py


def test_the_program_over_the_cap_is_stopped_and_its_neighbour_is_not(seen):
    enforced = seen["enforced"]
    assert enforced["large_ended"] in {-15, -9}
    assert enforced["small_ended"] is None


def test_the_enforcer_says_why_and_that_the_memory_came_back(seen):
    stop, freed = seen["enforced"]["events"]
    assert stop["msg"] == "stopping a process"
    assert "over the VRAM cap" in seen["enforced"]["verdict"]
    assert stop["used_bytes"] >= 2048 * MIB
    assert freed["msg"] == "memory came back"
    assert seen["enforced"]["enforcer_ended"] == 0


def test_the_self_test_passes(seen):
    assert seen["enforced"]["self_test"]["ability"] == "full"


def test_nvml_tells_each_process_what_it_allocated_and_its_context(seen):
    measured = seen["measured"]
    for name, allocated in (("small", 512 * MIB), ("large", 2048 * MIB)):
        assert allocated <= measured["used_bytes"][name] <= allocated + CONTEXT_BYTES


def test_inside_the_namespace_the_list_has_our_own_numbers(seen):
    assert set(seen["measured"]["pids"].values()) <= set(seen["measured"]["listed"])


def test_outside_the_same_processes_are_listed_with_the_same_figures(seen):
    inside = sorted(seen["measured"]["used_bytes"].values())
    assert set(inside) <= set(seen["outside"].values())


def test_the_device_figure_is_cheaper_than_a_process_list(seen):
    assert 0 < seen["measured"]["device_us"] < seen["measured"]["list_us"]
