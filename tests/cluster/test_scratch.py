from test_cluster_plugins import limit_range
from builders import *
from our_server import container
VRAM="vramwarden.io/vram"
def show(team, p, tag):
    try:
        pod = team.accepts(p)
        print(tag, "OK", [(c["name"],c["resources"].get("limits")) for c in (*pod["spec"]["containers"],*pod["spec"].get("initContainers",()))])
    except Exception as e:
        print(tag, "NO", e)
    print(team.calls()); 
def test_1(team):
    limit_range(team, max={VRAM:"16Gi"}); show(team,a_pod(),"plain max"); show(team,a_pod("8Gi"),"8 max"); show(team,a_pod("32Gi"),"32 max")
def test_2(team):
    limit_range(team, default={VRAM:"1Gi"}); show(team,a_pod(),"plain def"); show(team,a_pod("8Gi"),"8 def"); 
def test_3(team):
    limit_range(team, default={VRAM:"0"}); show(team,a_pod(),"plain def0"); show(team,a_pod("8Gi"),"8 def0"); 
def test_4(team):
    limit_range(team, default={VRAM:"0"}, max={VRAM:"16Gi"}); show(team,a_pod(),"plain def0 max"); show(team,a_pod("8Gi"),"8 def0 max"); 
def test_5(team):
    limit_range(team, type="Pod", max={VRAM:"16Gi"}); show(team,a_pod(),"plain podmax"); show(team,a_pod("8Gi"),"8 podmax");show(team,a_pod("32Gi"),"32 podmax"); 
