"""Follow the advice in vramwarden's messages literally, as a reader would.

`CURES` has a pattern for each form of advice. A message that no pattern matches fails its test, so
new advice needs an entry here. `tests/core/admission/test_suggested_lines.py` then checks that the
changed pod is admitted.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from webhook.core.pod.other_products import OTHER_PRODUCTS_BY_RESOURCE
from webhook.core.pod.quantity import canonicalize, parse_quantity
from webhook.names import REQUEST_ANNOTATIONS

Json = dict[str, Any]
MEMORY, CLASS, COUNT = REQUEST_ANNOTATIONS
VRAM = "vramwarden.io/vram"
BOTH = "in limits and requests"
COMMA = re.compile("(?<![0-9]),|,(?![0-9]+ *[A-Za-z]* *(?:,|$))")
"""Regular expression for a comma between list entries, but not a decimal comma."""
PART = re.compile(r"\[([^\]]+)\]|([^.\[\]]+)")


def keys_of(path: str) -> list[str]:
    return [match[1] or match[2] for match in PART.finditer(path)]


def holder_of(pod: Json, path: str) -> tuple[Any, Any]:
    """Return the object that contains a field, created if absent, and the field's key."""
    *parents, last = keys_of(path)
    holder: Any = pod
    for key in parents:
        if isinstance(holder, list):
            holder = holder[int(key)]
        else:
            if holder.get(key) is None:
                holder[key] = {}
            holder = holder[key]
    return holder, int(last) if isinstance(holder, list) else last


def put(pod: Json, path: str, value: Any) -> Json:
    holder, key = holder_of(pod, path)
    holder[key] = value
    return pod


def drop(pod: Json, path: str) -> Json:
    holder, key = holder_of(pod, path)
    if isinstance(holder, list):
        del holder[key]
    else:
        holder.pop(key, None)
    return pod


def of_requests(path: str) -> str:
    return path.replace(".limits[", ".requests[")


def drop_both(pod: Json, path: str) -> Json:
    """Remove the limit and the request of a resource."""
    return drop(drop(pod, path), of_requests(path))


def containers(pod: Json) -> Iterator[Json]:
    for field in ("containers", "initContainers"):
        yield from pod["spec"].get(field) or ()


def annotate(pod: Json, key: str, value: str | None) -> Json:
    notes = pod["metadata"].get("annotations") or {}
    pod["metadata"]["annotations"] = notes
    notes.pop(key, None)
    if value is not None:
        notes[key] = value
    return pod


def amount(pod: Json, path: str, value: str, entry: str = "") -> Json:
    """Write an amount to a field, or to an entry of the annotation's list."""
    if not entry:
        return put(pod, path, value)
    written = pod["metadata"]["annotations"][MEMORY]
    name = re.escape(entry)
    found = re.compile(rf"(^|,)( *{name} *=).*?(?=,[^,=]*=|,[^=0-9]*$|$)")
    annotate(pod, MEMORY, found.sub(rf"\g<1>\g<2>{value}", written, count=1))
    return pod


def lines(pod: Json, said: str) -> Json:
    """Write the lines `KEY: VALUE` of a message into the annotations."""
    for key, value in re.findall(
        rf"({'|'.join(REQUEST_ANNOTATIONS)}): (\"[^\"]*\"|[^,:;?\" ]+(?:, [^ ,=]+=[^ ,;]+)*)", said
    ):
        annotate(pod, key, value.strip('"'))
    return pod


def without_demand(pod: Json, keys: str) -> Json:
    for key in keys.split(" and "):
        annotate(pod, key, None)
        for container in containers(pod):
            for kind in ("limits", "requests"):
                ((container.get("resources") or {}).get(kind) or {}).pop(key, None)
    return pod


def within(pod: Json, path: str, found: re.Match[str]) -> Json:
    """Change a container's request to satisfy a bound. The tightest bound wins."""
    tighter = min if "at most" in found[0] else max
    bound = parse_quantity(found[1])
    if ".resources." in path:
        number = pod["metadata"].get("annotations", {}).get(COUNT, "1")
        count = int(number) if number.isdigit() else 1
        holder, key = holder_of(pod, path)
        if key not in holder:  # another bound moved the amount to the limits
            holder, key = holder_of(pod, path.replace(".requests[", ".limits["))
        number = int(tighter(parse_quantity(holder[key]), bound * count))
        without_demand(pod, VRAM)
        return put(pod, path.replace(".requests[", ".limits["), str(number))
    written = pod["metadata"]["annotations"].get(MEMORY)
    if written is None:  # another message advised removing it
        return pod
    without_demand(pod, VRAM)  # the bound also applies to an explicit amount
    first, *others = COMMA.split(written)
    name, equals, size = first.rpartition("=")
    value = found[1] if others else str(int(tighter(parse_quantity(size.strip()), bound)))
    return annotate(pod, MEMORY, name + equals + value)


def said_amounts(pod: Json, path: str, found: re.Match[str]) -> list[Json]:
    entry = re.match(r"([a-z0-9-]+)=", found.string)
    every = [group for group in found.groups() if group]
    return [amount(copy.deepcopy(pod), path, item, entry[1] if entry else "") for item in every]


def one(do: Callable[[Json, str, re.Match[str]], Json]) -> Any:
    """Return the handler for advice that can be followed in only one way."""
    return lambda pod, path, found: [do(copy.deepcopy(pod), path, found)]


def nothing(_pod: Json, _path: str, _found: re.Match[str]) -> list[Json]:
    """Return no pods, since the advice is not for the pod's author."""
    return []


def removed(pod: Json, path: str, _found: re.Match[str]) -> Json:
    return (
        drop_both(pod, path) if keys_of(path)[-1] in OTHER_PRODUCTS_BY_RESOURCE else drop(pod, path)
    )


def as_it_is(pod: Json, _path: str, _found: re.Match[str]) -> Json:
    return pod


def classes(pod: Json, _path: str, found: re.Match[str]) -> list[Json]:
    return [annotate(copy.deepcopy(pod), CLASS, name) for name in found[1].split(", ")]


def without_volume(pod: Json, path: str, _: re.Match[str]) -> Json:
    """Remove a volume and its mounts."""
    volume = path.removesuffix(".hostPath.path")
    holder, index = holder_of(pod, volume)
    name = holder[index].get("name")
    for field in ("containers", "initContainers", "ephemeralContainers"):
        for container in pod["spec"].get(field) or []:
            mounts = container.get("volumeMounts")
            if mounts:
                container["volumeMounts"] = [mount for mount in mounts if mount.get("name") != name]
    return drop(pod, volume)


def one_of_two(pod: Json, path: str, found: re.Match[str]) -> list[Json]:
    fewer = drop(copy.deepcopy(pod), path)
    if path != (limit := path.replace(".requests[", ".limits[")):
        drop(fewer, limit)  # the limit that following another message added
    return [fewer, without_demand(copy.deepcopy(pod), found[1])]


def renamed(pod: Json, path: str, found: re.Match[str]) -> list[Json]:
    """Rename a container in the list or in the annotation for the default container."""
    made = []
    for name in found[2].split(", "):
        if path.endswith("default-container]"):
            made.append(put(copy.deepcopy(pod), path, name))
            continue
        written = pod["metadata"]["annotations"][MEMORY]
        names = {entry.partition("=")[0].strip() for entry in COMMA.split(written)}
        if name not in names:
            wrong = re.escape(found[1])
            again = re.sub(rf"(^|,)( *){wrong}( *=)", rf"\g<1>\g<2>{name}\g<3>", written, count=1)
            made.append(annotate(copy.deepcopy(pod), MEMORY, again))
    return made


def entries(pod: Json, keep: Callable[[list[str]], list[str]]) -> Json:
    written = [entry.strip() for entry in COMMA.split(pod["metadata"]["annotations"][MEMORY])]
    return annotate(pod, MEMORY, ", ".join(keep(written)))


def without_last(pod: Json, _path: str, found: re.Match[str]) -> Json:
    """Remove the last list entry with a name."""
    written = COMMA.split(pod["metadata"]["annotations"][MEMORY])
    places = [n for n, entry in enumerate(written) if entry.partition("=")[0].strip() == found[1]]
    del written[places[-1]]
    return annotate(pod, MEMORY, ",".join(written))


def unnamed(written: list[str]) -> list[str]:
    return [entry for entry in written if re.fullmatch("[^=]+=.*", entry)]


def once(written: list[str]) -> list[str]:
    return list({entry.partition("=")[0]: entry for entry in reversed(written)}.values())


def theirs(pod: Json, path: str, found: re.Match[str]) -> Json:
    """Remove the resources that a hint names, and write its line."""
    drop_both(pod, path)
    for name in filter(None, (found["more"] or "").split(" and ")):
        drop_both(pod, re.sub(r"\[[^\]]*\]$", f"[{name}]", path))
    return lines(pod, found["line"])


def shared(pod: Json, path: str, found: re.Match[str]) -> Json:
    for name in found[1].split(" and ")[1:]:
        drop(pod, re.sub(r"\[[^\]]*\]$", f"[{name}]", path))
    return annotate(drop(pod, path), MEMORY, found[2])


def for_each(pod: Json, path: str, found: re.Match[str]) -> Json:
    """Replace an annotation for all containers by one per container."""
    key = keys_of(path)[-1]
    value = pod["metadata"]["annotations"][key]
    annotate(pod, key, None)
    for container in containers(pod):
        annotate(pod, f"{found[1]}{container['name']}", value)
    return pod


def hostname(pod: Json, _path: str, _found: re.Match[str]) -> Json:
    node = pod["spec"].pop("nodeName")
    pod["spec"]["nodeSelector"] = {
        **(pod["spec"].get("nodeSelector") or {}),
        "kubernetes.io/hostname": node,
    }
    return pod


def in_container(pod: Json, path: str) -> Json:
    holder, _ = holder_of(pod, path.partition("]")[0] + "].name")
    return holder


def as_user(pod: Json, path: str, _found: re.Match[str]) -> Json:
    for container in containers(pod):
        container["securityContext"] = {
            **(container.get("securityContext") or {}),
            "runAsUser": 1000,
        }
    return pod


def served(pod: Json, path: str, found: re.Match[str]) -> Json:
    """Append an argument, or a flag to the value of an environment variable."""
    if path.endswith(".value"):
        return lengthened(pod, path, found)
    container = in_container(pod, path)
    container["args"] = [*(container.get("args") or []), found[1]]
    return pod


def inserted(pod: Json, path: str, found: re.Match[str]) -> Json:
    """Insert a word into a shell command."""
    holder, key = holder_of(pod, path)
    assert found[2] in holder[key]
    line = re.sub(r"(?<=\s)#[^\n]*", "", holder[key])
    holder[key] = line.replace(found[2], f"{found[2]} {found[1]}", 1)
    return pod


def lengthened(pod: Json, path: str, found: re.Match[str]) -> Json:
    """Append to a shell command."""
    holder, key = holder_of(pod, path)
    holder[key] = f"{holder[key].rstrip()} {found[1]}"
    return pod


def starting(pod: Json, path: str, found: re.Match[str]) -> Json:
    """Write a command with a flag."""
    return put(pod, path, ["python", "main.py", found[1]])


def scalar(pod: Json, path: str, found: re.Match[str]) -> Json:
    """Write a YAML scalar as the whole field."""
    value = yaml.safe_load(found[1])
    assert ".resources" in path or isinstance(value, str), found[1]
    return put(pod, path, value)


def with_variable(pod: Json, path: str, found: re.Match[str]) -> Json:
    in_container(pod, path).setdefault("env", []).append({"name": found[1], "value": found[2]})
    return pod


def written_before(pod: Json, path: str, found: re.Match[str]) -> Json:
    """Write a file to the model repository before Triton starts."""
    container = in_container(pod, path)
    edit = f"sed -i s/{found[2]}=BOUND/{found[2]}={found[1]}/ /models/*/{found[3]}"
    container["command"] = ["sh", "-c"]
    container["args"] = [f"{edit} && exec tritonserver --model-repository=/models"]
    return pod


def replaced(pod: Json, path: str, found: re.Match[str]) -> Json:
    """Replace a string by another, or remove it."""
    holder, key = holder_of(pod, path)
    old, new = (found[2], found[1]) if found.re.groups > 1 else (found[1], "")
    if holder[key] == old and new:
        new = yaml.safe_load(new)
        assert isinstance(new, str), found[1]
    assert old in holder[key]
    holder[key] = holder[key].replace(old, new)
    return pod


def with_flag(pod: Json, path: str, found: re.Match[str]) -> Json:
    """Write the value of an existing flag or key in the same argument."""
    holder, key = holder_of(pod, path)
    old = re.compile(
        rf"""{re.escape(found[1])}["']?(?:\s*[:=]\s*|\s+)(["']?)(?:\$\(.*?\)|\$\{{.*?\}}|[^\s"',;}})]+)\1"""
    )
    assert old.search(holder[key])
    holder[key] = old.sub(lambda _: found[1] + found[2], holder[key], count=1)
    return pod


def enlarged(pod: Json, path: str, found: re.Match[str]) -> Json:
    if found[2]:
        without_demand(pod, VRAM)
    return put(pod, path, found[1])


def memory_shm(pod: Json, _path: str, _found: re.Match[str]) -> Json:
    del pod["spec"]["hostIPC"]
    pod["spec"].setdefault("volumes", []).append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    return pod


def in_place(pod: Json, path: str, _found: re.Match[str]) -> Json:
    drop_both(pod, path)
    name = in_container(pod, path)["name"]
    return annotate(pod, MEMORY, f"{name}=1Gi")


def alike(pod: Json, path: str, _found: re.Match[str]) -> Json:
    for container in containers(pod):
        (container.get("securityContext") or {}).pop(keys_of(path)[-1], None)
    return pod


def without_assignment(pod: Json, path: str, found: re.Match[str]) -> Json:
    """Remove an assignment from a command line, and the field if it becomes empty."""
    holder, key = holder_of(pod, path)
    left = holder[key].replace(found[1], "").strip()
    return put(pod, path, left) if left else drop(pod, path)


E = r"(?:, or ask your platform team .*)?$"
LINE = rf"(?P<line>(?:{'|'.join(REQUEST_ANNOTATIONS)}): .*)$"
ON = r"(?: on a GPU of \S+(?: with weights of half the amount)?)?; "
CURES: list[tuple[str, Any]] = [
    # programs that size themselves by the whole GPU
    (rf"^add (\S+) to the shell's line{ON}", one(lengthened)),
    (rf"^add (--\S+) after (.+?){ON}", one(inserted)),
    (rf"^add (--\S+) to the command that starts ComfyUI{ON}", one(starting)),
    (rf"^add (--\S+){ON}", one(served)),
    (rf"^add ([A-Z_]+)=(\S+){ON}", one(with_variable)),
    (
        r"^write (\S+=.+); without a name it goes to ",
        one(lambda pod, _, found: annotate(pod, MEMORY, found[1])),
    ),
    (rf"^write (\S+) as (\S+) into (\S+) before the start{ON}", one(written_before)),
    (rf"^write (\S+) in place of (\S+){ON}", one(replaced)),
    (
        r'^write (vramwarden.io/gpu-count: "[0-9]+"); ',
        one(lambda pod, _, found: lines(pod, found[1])),
    ),
    (rf"^write (--?[a-z_-]+)(=\S+){ON}", one(with_flag)),
    (rf"""^write (["']?[A-Za-z_-]+)(["']?\s*[:=]\s*\S+){ON}""", one(with_flag)),
    (rf"^write (\S+){ON}", one(scalar)),
    (r"^remove (\S+); only containers with VRAM", one(replaced)),
    (r"^write (.+) or more(, and remove vramwarden.io/vram)?; ", one(enlarged)),
    (r"^\S+ is too little; ", nothing),
    # advice without a line to write
    (r"; write e\.g\. (\S+)$", said_amounts),
    (r"^(?!remove it; ).*(?:; \S+|the pod|it) would be denied(?: as \S+)?(?:: .*)?$", nothing),
    # amounts
    (r"; use (\S+)(?: or (\S+))?$", said_amounts),
    (r"has a space in it; write (\S+)$", said_amounts),
    (r"; for (?:MiB|GiB) write (\S+?)(?:, for GiB (\S+))?$", said_amounts),
    (r"; write a size, e\.g\. (\S+)$", said_amounts),
    (r"; write a size$", nothing),
    (r'write a positive integer, e\.g\. "?([0-9]+)"?$', said_amounts),
    (
        r"add the VRAM per GPU, e\.g\. (\S+)$",
        one(lambda pod, _, found: annotate(pod, MEMORY, found[1])),
    ),
    (r"add the VRAM per GPU$", nothing),
    (
        r"name=size(?: for each container)?, e\.g\. (.+)$",
        one(lambda pod, _, found: annotate(pod, MEMORY, found[1])),
    ),
    (r"name=size(?: for each container)?$", nothing),
    (
        r"is not of the form name=size; correct or remove it$",
        one(lambda pod, _p, _f: entries(pod, unnamed)),
    ),
    (r"stands twice in the list; keep one entry$", one(lambda pod, _p, _f: entries(pod, once))),
    (r'no container "(.*)"; it has .+; remove the entry$', one(without_last)),
    (r'no container "(.*)"; it has (.+)$', renamed),
    (r"has no container that could get the VRAM$", nothing),
    (
        r"; (?:rule|class) .* (?:allows at most|wants at least) (\S+i)(?: for class .*)?$",
        one(within),
    ),
    (
        r"; the largest slice .* allows at most (\S+)$",
        one(within),
    ),
    (
        r"GPUs; rule .* allows at most (\d+)$",
        one(lambda pod, _, found: annotate(pod, COUNT, found[1])),
    ),
    (r"cannot be counted; ask for less$", nothing),
    (r"; tell your platform team .*$", nothing),
    # classes
    (r"; rule \S+ allows no class, so remove the annotation$", one(removed)),
    (r"; rule \S+ allows no class$", nothing),
    (r"; rule \S+ (?:allows|has for this pod) ([a-z0-9., -]+)$", classes),
    (r"; rule \S+ (?:allows no class|has .*)$", nothing),
    (r"; rule \S+ allows .*, with which the pod would be denied: .*$", nothing),
    # whole GPUs
    (r"remove it((?: and \S+)*) and set the annotation \S+, e\.g\. to (.+)$", one(shared)),
    (r"to share a GPU remove it$", one(removed)),
    (r"to share a GPU remove it.* and set the annotation \S+$", nothing),
    (
        r"^set limits\[\S+\] to (\S+) too; ",
        one(lambda pod, path, found: put(pod, path.replace("requests[", "limits["), found[1])),
    ),
    (
        r"^write (\S+) in both; ",
        one(
            lambda pod, path, found: put(
                put(pod, path, found[1]), path.replace("requests[", "limits["), found[1]
            )
        ),
    ),
    (r"^make them equal; ", nothing),
    (r"^remove it; the request .* limit", one(removed)),
    (
        r"^remove vramwarden.io/vram, or make the two agree; .*$",
        one(lambda pod, _p, _f: without_demand(pod, VRAM)),
    ),
    (
        r"^remove \S+ to share one, or (.+) to (?:have a whole one|have the slice|keep it); ",
        one_of_two,
    ),
    (r"; remove \S+, which \S+ reads$", one(removed)),
    (r"; remove the claim to share a GPU, or (.+) to keep the claim$", one_of_two),
    # removals
    (
        r"; remove (?:it|the line|hostPID|[A-Z_]+)(?:, or use kubectl debug .*?)?" + E,
        one(removed),
    ),
    (
        r"; remove the mount$",
        one(lambda pod, path, _: drop(pod, re.sub(r"\.(?:name|mountPath)$", "", path))),
    ),
    (r"; remove the annotation$", one(removed)),
    (
        r"; write \S+: false in the values of JupyterHub's chart$",
        one(lambda pod, path, _: drop(pod, path.partition(".securityContext")[0])),
    ),
    (
        r"; remove the request for VRAM$",
        one(
            lambda pod, _p, _f: without_demand(pod, f"{MEMORY} and {CLASS} and {COUNT} and {VRAM}")
        ),
    ),
    (r"; remove it and use nodeSelector kubernetes.io/hostname$", one(hostname)),
    (r"; write (\S+/container\.)NAME for each of your containers$", one(for_each)),
    (
        r"; remove hostIPC and mount an emptyDir with medium Memory at /dev/shm$",
        one(memory_shm),
    ),
    (
        r"remove the volume and its mounts, or ask your platform team for a rule .* name it$",
        one(without_volume),
    ),
    (r"; remove it, or ask your platform team for a rule whose hostPaths name it$", one(removed)),
    (r"; remove it, or ask with the annotation \S+$", one(removed)),
    (
        r"; give the container another name$",
        one(lambda pod, path, _: put(pod, path, "another")),
    ),
    (r"; give the volume another name$", one(lambda pod, path, _: put(pod, path, "another"))),
    # users, and the sidecar's resources
    (
        r"; set (runAsNonRoot: true|allowPrivilegeEscalation: false)$",
        one(lambda pod, path, found: put(pod, path, "true" in found[1])),
    ),
    (r"; set runAsUser to the image's user id(?:, which is not 0)?" + E, one(as_user)),
    (r"; give them the same runAsUser" + E, one(as_user)),
    (r"; write that of container \S+" + E, one(alike)),
    (
        r"; write at least (\S+)$",
        one(lambda pod, path, found: put(pod, path, found[1])),
    ),
    (r"; (?:split the pod|take some from a ConfigMap with envFrom|remove some)$", nothing),
    # messages of `--migrate`
    (
        r"promised no second GPU; for two GPUs add (\S+: \"2\")$",
        one(lambda pod, _, found: lines(pod, found[1])),
    ),
    (
        (
            r"(?:is|was) removed: |stays(?: without effect)?: |is of all templates, and stays|"
            r"could get a GPU of its own; here they share|each gets its part|"
            r"is removed, so the default scheduler|is removed$|is reserved as well|is read here: "
        ),
        nothing,
    ),
    # existing names
    (r"; delete the pod and create it again (?:with the new value|without it)$", one(as_it_is)),
    (r"; remove it; for VRAM create it again with the annotation \S+$", one(removed)),
    (
        r"; leave it as it (?:is|was, for only vramwarden writes it)$",
        nothing,
    ),
    # hints
    (r"^remove it(?P<more>(?: and [^ ,]+)*),? and write the annotation " + LINE, one(theirs)),
    (
        r"^write vramwarden.io/vram: (\S+) in its place; no node has this resource$",
        one(
            lambda pod, path, found: put(
                drop_both(pod, path),
                re.sub(r"\[[^\]]*\]$", f"[{VRAM}]", path.replace("requests[", "limits[")),
                found[1],
            )
        ),
    ),
    (
        r"^write (.*) (?:in its place|under metadata.annotations); (?:nothing reads|as a label)",
        one(lambda pod, path, found: lines(drop(pod, path), found[1])),
    ),
    (r"^write " + LINE, one(lambda pod, _, found: lines(pod, found["line"]))),
    (
        r"^remove it; (?:\S+ reads it, vramwarden|nothing reads this|no node has this|as a label)",
        one(removed),
    ),
    (r"the pod would be denied$|it would be denied$", nothing),
    (r"; remove (CUDA_VISIBLE_DEVICES=\S+)$", one(without_assignment)),
    (
        r"; write (compute\S*)$",
        one(lambda pod, path, found: put(pod, path, found[1])),
    ),
    (r"in place of a whole one; for another size write \S+ in its place.*$", one(in_place)),
    (r"and others there may take the memory first$", nothing),
]
_CURES = [(re.compile(pattern), do) for pattern, do in CURES]


def followed(pod: Json, path: str, detail: str) -> list[Json]:
    """Return the changed pods, one for each way that a message suggests.

    A sentence begins with the action; reasons follow a semicolon. Only what the message names is
    changed: limits and requests only if it names both.
    """
    both, detail = f" {BOTH}" in detail, detail.replace(f" {BOTH}", "")
    parts = detail.split("; ")
    for index, part in enumerate(parts):
        for said in (f"; {part}", "; ".join(parts[index:])):
            for pattern, do in _CURES:
                found = pattern.search(said)
                if found:
                    made = do(pod, path, found)
                    again = (do(item, of_requests(path), found) for item in made if both)
                    return [ways[n] for n, ways in enumerate(again)] or made
    raise AssertionError(f"say in tests/support/follow_advice.py how to follow: {detail}")


def respelled(pod: Json) -> Json:
    """Return a pod in the API server's form: canonical amounts, limits copied to requests."""
    pod = copy.deepcopy(pod)
    for container in containers(pod):
        resources = container.get("resources") or {}
        for kind in ("limits", "requests"):
            for name, written in (resources.get(kind) or {}).items():
                resources[kind][name] = canonicalize(str(written))
        for name, written in (resources.get("limits") or {}).items():
            if "/" in name:
                resources.setdefault("requests", {}).setdefault(name, written)
    return pod
