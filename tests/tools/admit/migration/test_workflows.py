"""Migration of templates that are no PodTemplateSpec: edits go to the right field."""

from __future__ import annotations

from tests.support.pods import a_container
from webhook.core.admission.workload_review import pod_from_template
from webhook.core.pod.patch import apply_patch
from webhook.core.pod.template_search import find_templates
from webhook.tools.admit.migration.foreign_pod import Origin, read_foreign_pod
from webhook.tools.admit.migration.requests import PRODUCTS
from webhook.tools.admit.migration.rewrite import migrate

ASKS = {"resources": {"limits": {"nvidia.com/gpumem": "1024"}}}


def move(product, item, **spec):
    """Migrate the only template of a Workflow; return it and the output."""
    workflow = {"spec": {"templates": [item], **spec}}
    (template,) = find_templates(workflow, "Workflow", "argoproj.io/v1alpha1")
    source = read_foreign_pod(pod_from_template(template, "w"), template, workflow)
    made = migrate(source, Origin(PRODUCTS[product]))
    assert not made.problems
    item = {"metadata": {}, **item}
    return apply_patch(item, made.operations), [*map(str, made.notes)]


def test_each_kind_of_container_is_edited_where_it_stands():
    item = {
        "name": "one",
        "schedulerName": "hami-scheduler",
        "initContainers": [a_container("before", **ASKS)],
        "script": {"image": "example", "source": "x", **ASKS},
        "sidecars": [a_container("cpu"), a_container("side", **ASKS)],
    }
    after, _ = move("hami", item)
    assert after == {
        "name": "one",
        "metadata": {"annotations": {"vramwarden.io/gpu-memory": "main=1Gi, side=1Gi, before=1Gi"}},
        "initContainers": [a_container("before")],
        "script": {"image": "example", "source": "x"},
        "sidecars": [a_container("cpu"), a_container("side")],
    }


def test_a_set_of_containers_is_edited_where_it_stands():
    item = {
        "containerSet": {"containers": [a_container("a"), a_container("b", **ASKS)]},
        "sidecars": [a_container("side", **ASKS)],
    }
    after, _ = move("hami", item)
    assert after["containerSet"] == {"containers": [a_container("a"), a_container("b")]}
    assert after["sidecars"] == [a_container("side")]
    annotations = {"vramwarden.io/gpu-memory": "b=1Gi, side=1Gi"}
    assert after["metadata"] == {"annotations": annotations}


def test_what_is_of_all_templates_stays_and_is_named():
    common = {"annotations": {"gpu-memory": "1024"}}
    item = {"container": a_container()}
    after, notes = move("kai", item, podMetadata=common, schedulerName="kai-scheduler")
    assert after["metadata"]["annotations"] == {"vramwarden.io/gpu-memory": "1Gi"}
    assert notes == [
        "metadata.annotations[gpu-memory]: is of all templates, and stays; remove it there",
        "spec.schedulerName: kai-scheduler is of all templates, and stays; remove it there",
    ]


def test_a_notebook_gets_its_annotation_at_its_own_metadata():
    notebook = {
        "metadata": {"name": "n", "annotations": {"a": "b"}},
        "spec": {"template": {"spec": {"containers": [a_container(**ASKS)]}}},
    }
    (template,) = find_templates(notebook, "Notebook", "kubeflow.org/v1")
    source = read_foreign_pod(pod_from_template(template, "n"), template, notebook)
    made = migrate(source, Origin(PRODUCTS["hami"]))
    assert made.operations == (
        {"op": "add", "path": "/metadata/annotations/vramwarden.io~1gpu-memory", "value": "1Gi"},
        {"op": "remove", "path": "/spec/containers/0/resources"},
    )
