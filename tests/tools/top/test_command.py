"""`vramwarden top` as users call it, with a stub of the API server."""

from __future__ import annotations

import codecs
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from contextlib import suppress

import pytest

from tests.support.api_server import write_kubeconfig
from tests.support.clusters import NOW_S, a_cluster, a_gpu, a_node, a_pod, ago, team_nodes
from tests.support.gpu_nodes import GPU_NODES_PATH
from tests.tools.top.pages import read_page, sections
from webhook.cli.main import main
from webhook.tools.snapshot.node import CONFIGURED
from webhook.tools.top.report import build_report
from webhook.tools.top.terminal import Terminal as Drawing
from webhook.tools.top.terminal import TopOutput

MOST_MODULES = {"top": 74, "explain": 100}
"""Maximum number of vramwarden modules that a command imports; each takes milliseconds."""

NO_NODES = (200, {"kind": "GPUNodeList", "metadata": {}, "items": []})
TEAM_A = "/api/v1/namespaces/team-a/pods"


@pytest.fixture
def cluster(api_server):
    """Serve a cluster with two pods in team-a, the user's namespace."""
    write_kubeconfig(api_server.kubeconfig, api_server.url, namespace="team-a")
    llama = a_pod("llama-0", "16Gi", uid="llama", node="n1")
    embed = a_pod("embed-0", "8Gi", uid="embed", node="n2")
    return a_cluster(team_nodes(), [llama, embed]).stored_in(api_server)


@pytest.fixture
def top(cluster, capsys):

    def run(*arguments, kubeconfig=cluster.kubeconfig):
        with pytest.raises(SystemExit) as ended:
            main(["top", "--kubeconfig", str(kubeconfig), *arguments], prog_name="vramwarden")
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


def first_words(text):
    return [line.split()[0] for line in text.splitlines() if line]


def test_nodes_and_then_the_pods_of_the_namespace(top, cluster):
    cluster.add(a_pod("shell", uid="rogue", node="n2"))
    code, out, err = top("-n", "team-a", "--ascii")
    assert (code, err) == (0, "")
    assert out.startswith("3 nodes, 6 GPUs, 360Gi usable: 283Gi promised (78%), 190Gi used (52%);")
    assert "n2      0  A10             ###########======.......      16Gi   9.8Gi   6Gi" in out
    assert "llama-0       n1    0    16Gi  ####......     6Gi  6.1Gi  running" in out
    assert "! n2 GPU 1: 3.1Gi are held by pod team-a/shell, which has no cap" in out
    # The last request is about n2, the node with unmanaged memory.
    assert [request.path for request in cluster.asked] == [GPU_NODES_PATH, TEAM_A, TEAM_A]


@pytest.mark.parametrize(
    ("arguments", "begins"),
    [
        (["nodes"], ["3", "NODE", "n1", "1", "n2", "1", "n3", "1", "!", "!", "kubectl"]),
        (["nodes", "n1"], ["1", "NODE", "n1", "1"]),
        (["node", "nope"], ["!"]),
        (["pods", "--sort", "used"], ["POD", "embed-0", "llama-0", "!"]),
        (["pod", "llama-0"], ["POD", "llama-0"]),
        (["pods", "--node", "n2"], ["POD", "embed-0", "!"]),
        (["workloads"], ["WORKLOAD", "Pod/embed-0", "Pod/llama-0", "!"]),
        (["workload", "pod/llama-0"], ["WORKLOAD", "Pod/llama-0", "!"]),
        (["--node", "n1"], ["1", "NODE", "n1", "1", "POD", "llama-0"]),
    ],
)
def test_parts_are_shown_alone(top, arguments, begins):
    code, out, _ = top(*arguments)
    assert (code, first_words(out)) == (0, begins)


NOT_YET = (
    "no node has reported yet; does the sentry run? "
    "(kubectl get pods -A -l app.kubernetes.io/component=sentry -o wide)"
)


@pytest.mark.parametrize(
    ("nodes", "denied", "said"),
    [
        (
            [a_node("a", said=16), a_node("b", said=8)],
            (),
            f"amounts are {CONFIGURED}: a 16Gi, b 8Gi",
        ),
        ([a_node("a", said=16), a_node("n", a_gpu(79))], (), "no node has reported yet"),
        ([a_node("a", said=16)], ("list", "nodes"), f"{NOT_YET} There is none where amounts are"),
        ([], (), "no node has reported yet"),
    ],
)
def test_without_figures_it_says_whether_amounts_are_only_said(top, cluster, nodes, denied, said):
    for name in list(cluster.objects):
        if "/nodes/" in name:
            cluster.remove(name)
    cluster.add(*(node.stored for node in nodes)).denied.add(denied)
    cluster.fails("GET .*/gpunodes", NO_NODES)
    code, out, _ = top()
    assert code == 0
    assert f"! no figures of GPUs: {said}" in out
    assert "no sentry reports of it" not in out
    assert "llama-0" in out


def test_all_namespaces_are_asked_for_at_once(top, cluster):
    _, out, _ = top("pods", "-A", "-l", "app!=x")
    assert out.startswith("NAMESPACE  POD ")
    asked = cluster.asked[1]
    assert asked.path == "/api/v1/pods"
    assert asked.query["labelSelector"] == "vramwarden.io/managed=true,app!=x"


def test_a_browser_gets_one_page_of_the_parts_that_are_named(top):
    page = read_page(top("-n", "team-a", "-o", "html")[1])
    assert list(sections(page)) == ["GPUs", "Pods that wait", "Pods with GPU memory"]
    titles = [element.get("title") for element in page.iter()]
    assert "team-a/llama-0: 6Gi used of its cap of 16Gi, peak 6.1Gi" in titles
    assert list(sections(read_page(top("nodes", "-o", "html")[1]))) == ["GPUs"]


def test_programs_get_bytes_and_nothing_for_what_is_not_known(top, cluster):
    managed = {"labels": {"vramwarden.io/managed": "true"}}
    new = a_pod("new-0", node="n1", gpus="GPU-n1-1", status="ContainerCreating", metadata=managed)
    cluster.add(new)
    report = json.loads(top("-n", "team-a", "-o", "json")[1])
    head = ("apiVersion", "kind", "namespace", "missing")
    said = ["vramwarden.io/v1alpha1", "TopReport", "team-a", []]
    assert [report[key] for key in head] == said
    parts = ("totals", "nodes", "pods", "workloads", "problems")
    assert list(report) == ["apiVersion", "kind", "time", "namespace", *parts, "missing"]
    pods = {pod["name"]: pod for pod in report["pods"]}
    figures = {
        "capBytes": 16 * 2**30, "usedBytes": 6 * 2**30, "peakBytes": 6246 * 2**20, "stops": 0,
    }  # fmt: skip
    assert pods["llama-0"] == figures | {
        "namespace": "team-a", "name": "llama-0", "uid": "llama", "node": "n1",
        "phase": "running", "status": "Running", "gpuCount": 1, "overCap": False,
        "nearCap": False, "createdAt": ago(540),
        "workload": {"kind": "Pod", "name": "llama-0"},
        "gpus": [{"uuid": "GPU-n1-0", "index": 0, **figures}],
    }  # fmt: skip
    assert pods["new-0"]["gpus"] == [{"uuid": "GPU-n1-1", "index": 1}]
    assert not {"capBytes", "usedBytes", "peakBytes", "stops"} & pods["new-0"].keys()
    (n1, n2, _) = report["nodes"]
    assert n2["gpus"][1]["unmanaged"] == [{"uid": "rogue", "usedBytes": 3174 * 2**20}]
    assert [(pod.get("name"), pod["uid"]) for pod in n1["gpus"][1]["pods"]] == [
        (None, "train-0"),
        (None, "other-3"),
    ]
    assert json.loads(top("pods", "-o", "json")[1]).keys() & {"nodes", "pods", "workloads"} == {
        "pods"
    }


@pytest.mark.parametrize(
    ("kind", "answer", "said"),
    [
        ("gpunodes", 404, "! no figures of GPUs: this cluster does not serve GPUNode:"),
        ("gpunodes", 403, "! no figures of GPUs: needs the right to list gpunodes"),
        ("pods", 403, "! no pods: needs the right to list pods in namespace team-a;"),
    ],
)
def test_what_cannot_be_read_is_one_sentence_and_the_rest_is_shown(
    top, cluster, kind, answer, said
):
    cluster.fails(f"/{kind}", answer, forever=True)
    code, out, _ = top("-n", "team-a")
    assert code == 0
    assert said in out
    assert ("POD (team-a)" in out) == (kind == "gpunodes")
    assert ("NODE  GPU  PRODUCT" in out) == (kind == "pods")


@pytest.mark.parametrize(("answer", "is_said"), [(404, True), ((200, {}), False), (403, False)])
def test_a_namespace_that_does_not_exist_is_said_if_that_may_be_read(top, cluster, answer, is_said):
    cluster.fails(r"/namespaces/nosuch(\?|$)", answer, forever=True)
    code, out, _ = top("-n", "nosuch")
    said = "! no pods: there is no namespace nosuch; name one with -n\n"
    assert (code, said in out) == (0, is_said)


def test_where_nothing_may_be_read_the_command_fails_with_both_sentences(top, cluster):
    cluster.denied |= {("list", "gpunodes"), ("list", "pods")}
    code, out, err = top("-n", "team-a")
    assert (code, out) == (3, "")
    assert "Error: no figures of GPUs: needs the right to list gpunodes" in err
    assert "\nno pods: needs the right to list pods in namespace team-a;" in err


def test_who_is_not_known_learns_that(top, cluster):
    cluster.fails("/gpunodes", 401)
    code, out, err = top()
    assert (code, out) == (3, "")
    assert "it does not accept our token or certificate" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpus"], "'gpus' is not one of 'nodes', 'pods', 'workloads'"),
        (["-A", "-n", "x"], "pass -n or -A, not both"),
        (["nodes", "n1", "--node", "n2"], "name a node once"),
        (["-w", "0"], "0 is not in the range"),
        (["--watch=nan"], "'nan' is not a valid integer"),
        (["-w", "-o", "html"], "a page is drawn once"),
        (["--sort", "size"], "is not one of"),
        (["-o", "yaml"], "is not one of"),
    ],
)
def test_wrong_usage_is_exit_code_2(top, cluster, arguments, said):
    code, out, err = top(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert cluster.asked == []


def environment(cluster):
    return {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}


def started(cluster, *arguments, env=None, **options):
    """Start the command with the shortest interval."""
    # Background processes of a shell, and their children, ignore Ctrl-C.
    heeds = ["env", "--unset=NO_COLOR", "--default-signal=INT"]
    heeds += [f"{key}={text}" for key, text in {"TERM": "xterm", **(env or {})}.items()]
    command = [*heeds, sys.executable, "-m", "webhook.cli", "top", "-w", "1", *arguments]
    return subprocess.Popen(command, env=environment(cluster), **options)


def test_ctrl_c_ends_a_watch_quietly_while_it_reads(capsys):
    def read():
        raise KeyboardInterrupt

    parts = {"parts": ("nodes",), "all_parts": ("nodes", "pods")}
    output = TopOutput(**parts, format="json", term=Drawing(), read=read, every_s=0)
    output.watch(build_report(a_cluster(team_nodes()).figures, [], NOW_S))
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.process
def test_without_a_terminal_each_change_is_one_line_of_json(cluster):
    running = started(cluster, stdout=subprocess.PIPE, text=True)
    read_again = threading.Event()
    try:
        first = json.loads(running.stdout.readline())
        # Nothing changes for two rounds, so `top` writes nothing.
        cluster.fails("GET", *[lambda _: None] * 6, lambda _: read_again.set())
        assert read_again.wait(60)
        cluster.remove(f"{TEAM_A}/embed-0")
        second = json.loads(running.stdout.readline())
    finally:
        running.send_signal(signal.SIGINT)
        rest, _ = running.communicate(timeout=60)
    assert [len(report["pods"]) for report in (first, second)] == [2, 1]
    assert (rest, running.returncode) == ("", 0)


class Terminal:
    """A terminal that runs `top -w`."""

    def __init__(self, cluster, *arguments, **env):
        self.mine, theirs = pty.openpty()
        termios.tcsetwinsize(self.mine, (30, 110))
        self.before = termios.tcgetattr(theirs)
        self.theirs, self.text = theirs, ""
        self.decode = codecs.getincrementaldecoder("utf-8")().decode  # a read may split a letter
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
        self.process = started(cluster, *arguments, env=env, start_new_session=True, **streams)

    def until(self, text):
        deadline_s = time.monotonic() + 60
        while text not in self.text:
            left_s = deadline_s - time.monotonic()
            assert select.select([self.mine], [], [], max(0.0, left_s))[0], self.text
            self.text += self.decode(os.read(self.mine, 65536))

    def ended(self):
        """Return the exit code, whether the terminal was restored, and the last output."""
        code = self.process.wait(timeout=60)
        after = termios.tcgetattr(self.theirs)
        os.close(self.theirs)
        with suppress(OSError):  # EIO: the other end is closed, and everything has been read
            while True:
                self.text += self.decode(os.read(self.mine, 65536))
        os.close(self.mine)
        return code, after == self.before, self.text.rpartition("\033[?1049h")[2]


@pytest.fixture
def terminal(cluster):
    """Return a function that starts the command on a terminal. Kill the command at the end."""
    running = []

    def start(*arguments, **env):
        running.append(Terminal(cluster, *arguments, **env))
        return running[-1]

    yield start
    for terminal in running:
        terminal.process.kill()
        terminal.process.wait()


@pytest.mark.process
@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda terminal: os.write(terminal.mine, b"q"), 0),
        (lambda terminal: terminal.process.send_signal(signal.SIGINT), 0),
        (lambda terminal: terminal.process.send_signal(signal.SIGTERM), 143),
    ],
    ids=["q", "ctrl-c", "sigterm"],
)
def test_a_terminal_is_given_back_as_it_was(terminal, end, code):
    terminal = terminal()
    terminal.until("q quits")
    assert "\033[?1049h" in terminal.text
    assert "\033[32m" in terminal.text
    end(terminal)
    ended, restored, last = terminal.ended()
    assert (ended, restored) == (code, True)
    assert last.endswith("\033[?7h\033[?25h\033[?1049l")


@pytest.mark.process
def test_a_screen_is_drawn_again_and_says_when_the_server_is_gone(cluster, terminal):
    terminal = terminal("pods", NO_COLOR="1")
    terminal.until("embed-0")
    cluster.add(a_pod("later-0", "8Gi"))
    terminal.until("later-0")
    cluster.fails("/gpunodes", 401, forever=True)
    terminal.until("s ago: ")
    cluster.recovers()
    cluster.add(a_pod("again-0", "8Gi"))
    terminal.until("again-0")
    os.write(terminal.mine, b"q")
    code, restored, _ = terminal.ended()
    assert (code, restored) == (0, True)
    assert "\033[3" not in terminal.text
    assert "\033[1m" not in terminal.text


@pytest.mark.process
def test_a_user_who_suspends_it_has_the_terminal_back_meanwhile(terminal):
    terminal = terminal()
    terminal.until("q quits")
    terminal.process.send_signal(signal.SIGTSTP)
    terminal.until("\033[?1049l")
    os.waitid(os.P_PID, terminal.process.pid, os.WSTOPPED)
    assert termios.tcgetattr(terminal.theirs) == terminal.before
    terminal.text = ""
    terminal.process.send_signal(signal.SIGCONT)
    terminal.until("\033[?1049h")
    os.write(terminal.mine, b"q")
    assert terminal.ended()[:2] == (0, True)


@pytest.mark.process
@pytest.mark.parametrize("command", [["top"], ["explain", "llama-0"]])
def test_who_asks_a_cluster_imports_nothing_that_serves_or_reads_policies(cluster, command):
    code = (
        "import json, sys\n"
        "from kubernetes import client, config\n"
        "theirs = {*sys.modules}\n"
        "from webhook.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print('\\n' + json.dumps(sorted(set(sys.modules) - theirs)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        env=environment(cluster),
        capture_output=True,
        text=True,
        check=False,
    )
    assert cluster.asked
    loaded = json.loads(done.stdout.splitlines()[-1])
    packages = {name.partition(".")[0] for name in loaded}
    assert not packages & {"flask", "gunicorn", "ruamel", "jsonpatch", "cryptography", "certs"}
    assert not packages & {"prometheus_client", "httptools", "uvloop", "pynvml", "pydantic"}
    assert not packages & {"jinja2", "markupsafe"}
    ours = {name for name in loaded if name.startswith("webhook.")}
    own = f"tools.{command[0]}"
    rooms = (
        "cli",
        "core",
        "adapters.kube",
        "names",
        "options",
        "tools.snapshot",
        "tools.render",
        "tools.problems",
        own,
    )
    elsewhere = {name for name in ours if not name.removeprefix("webhook.").startswith(rooms)}
    assert elsewhere <= {"webhook.adapters", "webhook.tools"}
    assert len(ours) <= MOST_MODULES[command[0]]
    assert len(loaded) <= 150, len(loaded)
