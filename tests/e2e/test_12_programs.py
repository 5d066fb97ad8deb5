"""Programs get their amount by environment variables, also in arguments."""

from __future__ import annotations

import pytest

from tests.e2e.pods import GIB, HOLD, MIB, container, pod

ASKED = "8Gi"
CONTEXT_MIB = 500  # memory of CUDA, within the 900Mi that the fraction leaves free

# Like JAX, the program allocates that fraction of the GPU's memory at once. The shell has no
# fractions, so it computes 10890 - 10000 ten thousandths for `0.0890`.
TAKES_A_FRACTION = f"""{HOLD}
while read -r word gpu rest; do
  case $word in gpu) total=${{rest#total=}}; total=${{total%% *}} ;; esac
done < /scene/stub.txt
share=$((total / 10000 * (1${{1#0.}} - 10000)))
echo "takes $1 of $total: $share"
hold $((share + {CONTEXT_MIB * MIB}))
sleep 8
echo "holds that still"
wait_for grow
hold {9 * GIB}
forever
"""


@pytest.fixture(scope="module")
def program(gpu_node, team):
    """Return a running pod whose program allocates a fraction of its GPU."""
    command = ["sh", "-c", TAKES_A_FRACTION, "sh"]
    arguments = ["$(VRAMWARDEN_GPU_MEMORY_FRACTION)"]
    mine = [{"name": "MINE", "value": "$(VRAMWARDEN_GPU_MEMORY_MIB)"}]
    main = container(command, args=arguments, env=mine)
    team.create(pod("program", ASKED, [], containers=[main]))
    team.wait_ready("program")
    yield "program"
    team.delete_pod("program")


def test_kubectl_exec_shows_the_cap_and_what_the_pod_makes_of_it(team, program):
    found = team.pod(program)
    (main,) = found["spec"]["containers"]
    ours = ["VRAMWARDEN_GPU_MEMORY_MIB", "VRAMWARDEN_GPU_MEMORY_FRACTION"]
    # Listed first, so that later variables may use them. The kubelet passes all in any order.
    assert [variable["name"] for variable in main["env"]][:2] == ours
    shown = dict(line.partition("=")[::2] for line in team.run(program, "env").splitlines())
    assert shown["VRAMWARDEN_GPU_MEMORY_MIB"] == "8192"
    fraction = found["metadata"]["annotations"]["vramwarden.io/gpu-memory-fraction"]
    assert shown["VRAMWARDEN_GPU_MEMORY_FRACTION"] == fraction == "0.0890"  # 8192 - 900 of 81920
    assert shown["MINE"] == "8192"


def test_who_takes_the_fraction_stays_under_the_cap(team, program):
    team.wait("it held for a while", lambda: "holds that still" in team.log(program))
    (took, _) = team.log(program).splitlines()
    print(took)
    assert took.startswith("takes 0.0890 of 85899345920: ")
    assert "over the VRAM cap" not in team.log(program, "vram-enforcer")


def test_and_is_stopped_once_it_takes_more(team, program):
    team.run(program, "touch", "/scene/grow")
    assert team.wait_ended(program)["exitCode"] == 143
