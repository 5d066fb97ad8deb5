"""Environment variables of a container that tell programs their cap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.core.nvidia.programs import (
    DEFAULT_PROGRAMS,
    PROGRAM_VARIABLES,
    Program,
    configure_programs,
    set_cap_variables,
    usable_bytes,
)

MI, GI = 2**20, 2**30
PATH = "metadata.annotations['vramwarden.io/gpu-memory-fraction']"
MIB = {"name": "VRAMWARDEN_GPU_MEMORY_MIB", "value": "8192"}
FRACTION = {
    "name": "VRAMWARDEN_GPU_MEMORY_FRACTION",
    "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": PATH}},
}
BARE = {"name": FRACTION["name"], "valueFrom": {"fieldRef": {"fieldPath": PATH}}}
OTHER = {"name": "A", "value": "1"}
REFERENCE = "$(VRAMWARDEN_GPU_MEMORY_FRACTION)"


def mib(value):
    return {"name": MIB["name"], "value": value}


def share(value):
    return {"name": FRACTION["name"], "value": value}


EVERY = tuple(Program)


def shown(env, cap_bytes: int | None = 8 * GI, *, fraction: bool = True):
    return set_cap_variables(env, cap_bytes, fraction=fraction)


def written(*programs, env=(FRACTION,), cap_bytes=8 * GI):
    """Return the variables added for programs, keyed by name."""
    env = list(env)
    after = configure_programs(env, programs, cap_bytes)
    assert after[: len(env)] == env
    return {entry["name"]: entry["value"] for entry in after[len(env) :]}


@pytest.mark.parametrize(
    ("cap_bytes", "usable"),
    [
        (64 * MI, 32 * MI),
        (1799 * MI, 1799 * MI // 2),
        (1800 * MI, 900 * MI),
        (1801 * MI, 901 * MI),
        (8 * GI, 8 * GI - 900 * MI),
    ],
)
def test_a_context_is_left_beside_what_a_framework_may_allocate(cap_bytes, usable):
    assert usable_bytes(cap_bytes) == usable


# --- the two variables of vramwarden, by row of the module's table


@pytest.mark.parametrize("rest", [[], [OTHER], [OTHER, OTHER]])
@pytest.mark.parametrize(
    "ours",
    [[], [MIB], [mib("4096")], [MIB, FRACTION], [mib("1"), BARE], [FRACTION], [mib("1"), mib("2")]],
)
def test_what_we_wrote_is_written_again_wherever_it_is(ours, rest):
    for env in ([*ours, *rest], [*rest, *ours], [*rest[:1], *ours, *rest[1:]]):
        right = [variable for variable in env if variable in (MIB, FRACTION)] == [MIB, FRACTION]
        is_right = right and len(env) == len(rest) + 2
        assert shown(env) == (env if is_right else [MIB, FRACTION, *rest])
        is_right = ours == [MIB]
        assert shown(env, fraction=False) == (env if is_right else [MIB, *rest])
        assert shown(env, None, fraction=False) == rest


@pytest.mark.parametrize("name", [MIB["name"], FRACTION["name"]])
def test_ours_come_before_what_refers_to_them(name):
    refers = {"name": "A", "value": f"--limit=$({name})"}
    assert shown([OTHER, refers, MIB, FRACTION]) == [MIB, FRACTION, OTHER, refers]
    assert shown([OTHER, MIB, FRACTION, refers]) == [OTHER, MIB, FRACTION, refers]


@pytest.mark.parametrize(
    "users",
    [
        [OTHER, mib("0x1000"), OTHER],
        [mib("")],
        [mib("4Gi")],
        [mib("-1")],
        [mib("٣")],
        [mib("9" * 20)],
        [{"name": MIB["name"]}],
        [{"name": MIB["name"], "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    ],
    ids=str,
)
def test_an_amount_of_the_users_stays(users):
    assert shown(users) == [FRACTION, *users]
    assert shown(users, fraction=False) is users
    assert shown(users, None, fraction=False) is users


@pytest.mark.parametrize(
    "users",
    [
        [share("0.1")],
        [share("")],
        [{"name": FRACTION["name"], "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}],
        [{**FRACTION, "value": "0.1"}],
    ],
    ids=str,
)
def test_a_fraction_of_the_users_stays(users):
    assert shown(users) == [MIB, *users]
    assert shown([MIB, *users]) == [MIB, *users]
    assert shown([MIB, FRACTION, *users]) == [MIB, *users]
    assert shown(users, None, fraction=False) is users


def test_what_is_right_already_is_returned_itself():
    env = [MIB, FRACTION, OTHER]
    assert shown(env) is env
    assert shown([env[0], OTHER], fraction=False) == [MIB, OTHER]


@pytest.mark.parametrize("cap_bytes", [8 * GI, 4 * GI])
@pytest.mark.parametrize("before", [8 * GI, 4 * GI])
def test_what_followed_from_another_amount_is_taken_off(before, cap_bytes):
    env = configure_programs(shown([OTHER], before), EVERY, before)
    after = configure_programs(shown(env, cap_bytes), EVERY, cap_bytes)
    fresh = configure_programs(shown([OTHER], cap_bytes), EVERY, cap_bytes)
    assert sorted(after, key=str) == sorted(fresh, key=str)
    assert (after == env) is (before == cap_bytes)


def test_what_followed_from_the_first_of_several_amounts_is_taken_off():
    stale = PROGRAM_VARIABLES[Program.CUPY][0].entry(4096 * MI)
    env = [OTHER, mib("4096"), stale, mib("5"), OTHER]
    assert shown(env) == [MIB, FRACTION, OTHER, OTHER]


def test_what_refers_to_a_fraction_that_is_gone_is_taken_off():
    env = configure_programs(shown([OTHER]), EVERY, 8 * GI)
    for cap_bytes in (8 * GI, None):
        after = shown(env, cap_bytes, fraction=False)
        assert REFERENCE in str(env)
        assert REFERENCE not in str(after)
        assert OTHER in after


@pytest.mark.parametrize("before", [True, False])
def test_a_value_of_the_users_stays_whatever_the_amount(before):
    users = [
        {"name": "CUPY_GPU_MEMORY_LIMIT", "value": "1073741824"},
        {"name": "OLLAMA_CONTEXT_LENGTH", "value": "4096"},
        {"name": "OLLAMA_NUM_PARALLEL", "value": "1"},
        {"name": "XLA_PYTHON_CLIENT_PREALLOCATE", "value": "false"},
        {"name": "XLA_CLIENT_MEM_FRACTION", "value": "0.1"},
        {"name": "PYTORCH_ALLOC_CONF", "value": "expandable_segments:True"},
    ]
    head = [mib("4096"), FRACTION] if before else []
    assert shown([*head, *users]) == [MIB, FRACTION, *users]
    assert shown([*head, *users], None, fraction=False) == users


def test_a_reference_to_the_fraction_that_a_user_wrote_stays():
    users = [{"name": "XLA_CLIENT_MEM_FRACTION", "value": REFERENCE}]
    once = shown(users, fraction=False)
    assert once == [MIB, *users]
    assert shown(once, fraction=False) == once


# --- the variables of programs


@pytest.mark.parametrize(
    ("program", "variables"),
    [
        ("jax", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
        ("tensorflow", {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}),
        ("jax-fraction", {"XLA_CLIENT_MEM_FRACTION": REFERENCE}),
        ("pytorch", {"PYTORCH_ALLOC_CONF": f"per_process_memory_fraction:{REFERENCE}"}),
        ("cupy", {"CUPY_GPU_MEMORY_LIMIT": "7646216192"}),
        ("julia", {"JULIA_CUDA_HARD_MEMORY_LIMIT": "7646216192"}),
        (
            "ollama",
            {
                "OLLAMA_MAX_LOADED_MODELS": "1",
                "OLLAMA_NUM_PARALLEL": "1",
                "OLLAMA_CONTEXT_LENGTH": "4096",
            },
        ),
    ],
)
def test_a_program_is_limited_by_its_own_variables(program, variables):
    assert written(program) == variables
    assert 8 * GI - 900 * MI == 7646216192


def test_every_program_is_in_the_table():
    assert list(PROGRAM_VARIABLES) == list(Program)
    assert DEFAULT_PROGRAMS == ("jax", "tensorflow")
    names = [setting.name for settings in PROGRAM_VARIABLES.values() for setting in settings]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("cap", "length"),
    [(8, "4096"), (23, "4096"), (24, "32768"), (47, "32768"), (48, "262144"), (80, "262144")],
)
def test_ollama_gets_the_context_that_it_chooses_for_a_gpu_of_that_size(cap, length):
    assert written("ollama", cap_bytes=cap * GI)["OLLAMA_CONTEXT_LENGTH"] == length


@pytest.mark.parametrize("program", Program)
def test_nothing_that_is_set_is_set_over(program):
    for setting in PROGRAM_VARIABLES[program]:
        for name in (setting.name, *setting.instead):
            for users in ({"name": name, "value": "x"}, {"name": name}):
                assert setting.name not in written(program, env=[FRACTION, users])


@pytest.mark.parametrize(
    ("program", "older"),
    [("jax-fraction", "XLA_PYTHON_CLIENT_MEM_FRACTION"), ("pytorch", "PYTORCH_CUDA_ALLOC_CONF")],
)
def test_two_names_of_one_setting_never_stand_together(program, older):
    assert written(program, env=[FRACTION, {"name": older, "value": "0.5"}]) == {}


def test_a_program_that_needs_a_fraction_gets_nothing_without_one():
    assert written("jax-fraction", "pytorch", "cupy", env=[OTHER]) == {
        "CUPY_GPU_MEMORY_LIMIT": "7646216192"
    }
    assert set(written("jax-fraction", "pytorch", env=[share("0.1")])) == {
        "XLA_CLIENT_MEM_FRACTION",
        "PYTORCH_ALLOC_CONF",
    }


ENTRIES = st.one_of(
    st.sampled_from(
        [OTHER, MIB, mib("4096"), mib("x"), FRACTION, BARE, share("0.1"), share(REFERENCE)]
    ),
    st.builds(
        lambda setting, cap: setting.entry(cap * MI),
        st.sampled_from(
            [setting for settings in PROGRAM_VARIABLES.values() for setting in settings]
        ),
        st.sampled_from([1024, 4096, 8192]),
    ),
)


@given(
    st.lists(ENTRIES, max_size=8),
    st.lists(st.sampled_from(Program), unique=True).map(tuple),
    st.sampled_from([1024 * MI, 4096 * MI, 8192 * MI]),
    st.booleans(),
)
def test_twice_equals_once(env, programs, cap_bytes, fraction):
    def both(env):
        return configure_programs(
            set_cap_variables(env, cap_bytes, fraction=fraction), programs, cap_bytes
        )

    once = both(env)
    assert both(once) == once
    forgotten = set_cap_variables(env, None, fraction=False)
    assert set_cap_variables(forgotten, None, fraction=False) == forgotten


@given(st.lists(ENTRIES, max_size=8), st.booleans())
def test_what_a_user_wrote_keeps_its_place(env, fraction):
    after = set_cap_variables(env, 8 * GI, fraction=fraction)
    kept, users = ([item for item in each if not is_ours(item)] for each in (after, env))
    assert kept == users


def is_ours(entry):
    """Return True for vramwarden's variables and those of programs, which may follow them."""
    is_of_program = entry["name"] in {
        item.name for found in PROGRAM_VARIABLES.values() for item in found
    }
    return is_of_program or entry in (MIB, mib("4096"), FRACTION, BARE)


@pytest.mark.parametrize("fraction", [True, False])
@pytest.mark.parametrize("envs", [[], [OTHER]])
def test_no_list_is_changed_itself(fraction, envs):
    env = list(envs)
    configure_programs(shown(env, fraction=fraction), EVERY, 8 * GI)
    assert env == envs
