{{/*
All names are fixed, whatever the release is called: the annotations on pods are one per cluster, so a
second release would translate every pod twice. As it is, Helm rejects it, and each command in
deploy/README.md is right everywhere.
*/}}

{{- define "vramwarden.labels" -}}
app.kubernetes.io/name: vramwarden
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Call with a dict of root and component. */}}
{{- define "vramwarden.metadata" -}}
name: vramwarden-{{ .component }}
{{- /* The labels come last, so that some can be added. */}}
labels:
  {{- include "vramwarden.labels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "vramwarden.namespacedMetadata" -}}
namespace: {{ .root.Release.Namespace | quote }}
{{ include "vramwarden.metadata" . }}
{{- end }}

{{- define "vramwarden.selector" -}}
app.kubernetes.io/name: vramwarden
app.kubernetes.io/component: {{ . }}
{{- end }}

{{/* Call with a dict of image and root. */}}
{{- define "vramwarden.image" -}}
{{- with .image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.root.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* What Pod Security `restricted` asks for. The user is the image's own, a number that is not 0, so
that OpenShift may put its own in its place. */}}
{{- define "vramwarden.podSecurityContext" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "vramwarden.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The RuntimeClass of what reads a node's GPUs; call with a dict of root and name: that of a value. Without
a cluster, as in `helm template`, `Auto` finds none, and for a fixed amount none is needed. */}}
{{- define "vramwarden.runtimeClass" -}}
{{- $name := default "" .name }}
{{- if eq $name "Auto" }}
{{- $found := and (not .root.Values.agent.vram) (lookup "node.k8s.io/v1" "RuntimeClass" "" "nvidia") }}
{{- $name = $found | empty | ternary "" "nvidia" }}
{{- end }}
{{- $name }}
{{- end }}

{{/* Whether the sentry is installed; empty for no. Where no driver is asked there is nothing to see. */}}
{{- define "vramwarden.hasSentry" -}}
{{- if and .Values.sentry.enabled (not .Values.agent.vram) }}true{{ end }}
{{- end }}

{{/* Whether the sentry shares the release's own namespace; empty for no. */}}
{{- define "vramwarden.hostsSentry" -}}
{{- if and (include "vramwarden.hasSentry" .) (eq .Values.sentry.namespace .Release.Namespace) }}true{{ end }}
{{- end }}

{{/* Of what is in the sentry's namespace. */}}
{{- define "vramwarden.sentryMetadata" -}}
namespace: {{ .Values.sentry.namespace | quote }}
{{ include "vramwarden.metadata" (dict "root" . "component" "sentry") }}
{{- end }}

{{/* The policy files, by name, as one JSON object. */}}
{{- define "vramwarden.policies" -}}
{{- $files := deepCopy (.Values.policies.files | default dict) }}
{{- if and .Values.policies.shipped (not (hasKey $files "default.yaml")) }}
{{- $_ := set $files "default.yaml" (.Files.Get "files/default.yaml") }}
{{- end }}
{{- toJson $files }}
{{- end }}

{{/* A regular expression for a list of namespaces in which * is any text. Names have no character but
* that means anything in one; values.schema.json and the policies' own schema see to it. */}}
{{- define "vramwarden.namespacePattern" -}}
^({{ join "|" . | replace "*" ".*" }})$
{{- end }}

{{/* Exempt by name, which nobody can forge; the label is for cluster admins. */}}
{{- define "vramwarden.namespaceSelector" }}
{{- $names := list "kube-system" "kube-public" "kube-node-lease" .Release.Namespace }}
{{- if include "vramwarden.hasSentry" . }}
{{- $names = append $names .Values.sentry.namespace }}
{{- end }}
{{- range .Values.exemptNamespaces }}
{{- if not (contains "*" .) }}{{ $names = append $names . }}{{ end }}
{{- end }}
matchExpressions:
- key: kubernetes.io/metadata.name
  operator: NotIn
  values:
  {{- range uniq $names }}
  - {{ . | quote }}
  {{- end }}
- key: vramwarden.io/webhook
  operator: NotIn
  values: [disabled]
{{- end }}

{{/* The matchCondition for exempt namespaces whose names have a *; empty where there is none. */}}
{{- define "vramwarden.exemptNamespaces" -}}
{{- $patterns := list }}
{{- range .Values.exemptNamespaces }}
{{- if contains "*" . }}{{ $patterns = append $patterns . }}{{ end }}
{{- end }}
{{- with $patterns }}
- name: namespace-is-not-exempt
  expression: "!request.namespace.matches('{{ include "vramwarden.namespacePattern" . }}')"
{{- end }}
{{- end }}

{{/* matchConditions of everything that reviews pods: which pods are nobody's business. */}}
{{- define "vramwarden.exemptions" -}}
{{ include "vramwarden.exemptNamespaces" . }}
# What a kubelet shows of a static pod runs already. The annotation alone proves nothing: anybody can
# write it, so the user has to be a node.
- name: is-no-mirror-pod
  expression: >-
    !(has(request.userInfo.groups) && 'system:nodes' in request.userInfo.groups
    && has(object.metadata.annotations)
    && 'kubernetes.io/config.mirror' in object.metadata.annotations)
{{- end }}

{{/*
Which pods are sent to us, and by which of two entries. The first, `Fail`, is for real demands: nobody
else may wait for us while no replica answers. The second, `advise`, is `Ignore` and for all else that
we judge. No pod goes to both.

What the two let through is more than `decide` in webhook/core/admission/decide.py judges, never less;
tests/chart proves it. A condition that cannot be evaluated denies the pod (`Fail`), or lets it pass us
by (`Ignore`): hence has() before every field. Webhooks have no variables, so a list of one and
`exists` stand in where something is read twice.
*/}}

{{/* All containers of `pod`, a name in CEL. */}}
{{- define "vramwarden.containers" -}}
((has(pod.spec.containers) ? pod.spec.containers : [])
+ (has(pod.spec.initContainers) ? pod.spec.initContainers : [])
+ (has(pod.spec.ephemeralContainers) ? pod.spec.ephemeralContainers : []))
{{- end }}

{{/* Whether `pod` has a list too long to be gone through: for that API servers up to 1.36 take a time that
grows with the square of its length, seconds for 3 MB of variables. */}}
{{- define "vramwarden.isLarge" -}}
((has(pod.metadata.annotations) && pod.metadata.annotations.size() > 4096)
|| (has(pod.spec.volumes) && pod.spec.volumes.size() > 1024)
|| [{{ include "vramwarden.containers" . }}].exists(all, all.size() > 512 || all.exists(container,
(has(container.env) && container.env.size() > 4096)
|| (has(container.volumeMounts) && container.volumeMounts.size() > 1024)
|| (has(container.resources) && has(container.resources.requests)
&& container.resources.requests.size() > 256))))
{{- end }}

{{/* Whether `pod` bears anything of ours: a demand, our marks, the resource (of a limit alone the API
server has made a request, too), or names that are reserved for the sidecar and its volumes. */}}
{{- define "vramwarden.isOurs" -}}
((has(pod.metadata.annotations) && pod.metadata.annotations.exists(key, key.startsWith('vramwarden.io/')))
|| (has(pod.metadata.labels) && 'vramwarden.io/managed' in pod.metadata.labels)
|| (has(pod.spec.volumes) && pod.spec.volumes.exists(volume, volume.name.startsWith('vram-enforcer')))
|| {{ include "vramwarden.containers" . }}.exists(container,
container.name.startsWith('vram-enforcer')
|| (has(container.volumeMounts)
&& container.volumeMounts.exists(mount, mount.name.startsWith('vram-enforcer')))
|| (has(container.resources) && has(container.resources.requests)
&& 'vramwarden.io/vram' in container.resources.requests)))
{{- end }}

{{/* Whether `pod` names GPUs by hand: by the variable, unless its value shows none. */}}
{{- define "vramwarden.namesDevices" -}}
{{ include "vramwarden.containers" . }}.exists(container, has(container.env)
&& container.env.exists(variable, variable.name == 'NVIDIA_VISIBLE_DEVICES'
&& (has(variable.valueFrom) || (has(variable.value) && !(variable.value in ['', 'void', 'none'])))))
{{- end }}

{{/* Whether `key` is one of those by which container runtimes are asked for devices (CDI). */}}
{{- define "vramwarden.isDeviceKey" -}}
(key.startsWith('nvidia.cdi.k8s.io') || key.startsWith('cdi.k8s.io/'))
{{- end }}

{{/* Whether an update changes keys; call with a field of metadata and a condition on `key`. */}}
{{- define "vramwarden.keysDiffer" -}}
[[has(object.metadata.{{ .field }}) ? object.metadata.{{ .field }} : {},
has(oldObject.metadata.{{ .field }}) ? oldObject.metadata.{{ .field }} : {}]].exists(both,
both.exists(one, one.exists(key, {{ .condition }}
&& !both.all(other, key in other && other[key] == one[key]))))
{{- end }}

{{/* Whether an update changes what may never change: our keys (and the one that says which container an
amount is for), amounts, the sidecar, the pod's own resources, how many (debugging) containers there are. So gates,
finalizers and labels of others go on while we are away, also on a pod with a demand. */}}
{{- define "vramwarden.oursDiffers" -}}
{{- $ours := "key.startsWith('vramwarden.io/')" }}
{{- $ofAnnotations := printf "(%s || key == 'kubectl.kubernetes.io/default-container')" $ours }}
{{ include "vramwarden.keysDiffer" (dict "field" "annotations" "condition" $ofAnnotations) }}
|| {{ include "vramwarden.keysDiffer" (dict "field" "labels" "condition" $ours) }}
|| [[object, oldObject].map(pod,
[has(pod.spec.resources) ? pod.spec.resources : dyn({})]
+ {{ include "vramwarden.containers" . }}.map(container,
container.name == 'vram-enforcer' ? container
: has(container.resources) && has(container.resources.limits)
&& 'vramwarden.io/vram' in container.resources.limits
? container.resources.limits['vramwarden.io/vram'] : dyn('')))].exists(views, views[0] != views[1])
{{- end }}

{{- define "vramwarden.isDebugged" -}}
(has(request.subResource) && request.subResource == 'ephemeralcontainers')
{{- end }}

{{/* What brings a request to the entry that is `Fail`. A new pod too large to be gone through is sent there,
for the webhook to judge by its size. One that is stored as large is left alone: it was not translated. */}}
{{- define "vramwarden.isDemand" -}}
(oldObject == null || ![oldObject].exists(pod, {{ include "vramwarden.isLarge" . }}))
&& ([object].exists(pod, {{ include "vramwarden.isLarge" . }})
|| ([object, oldObject].exists(pod, pod != null && {{ include "vramwarden.isOurs" . }})
&& (oldObject == null || {{ include "vramwarden.oursDiffers" . }}))
{{- if not (include "vramwarden.hasSecondLine" .) }}
|| {{ include "vramwarden.isByHand" . }}
{{- end }})
{{- end }}

{{/* GPUs named by hand, by variable or by annotation, also in a debugging container or by an update. The
second line denies those; where it does not stand they are the first entry's. */}}
{{- define "vramwarden.isByHand" -}}
((oldObject == null || {{ include "vramwarden.isDebugged" . }})
&& [object].exists(pod, {{ include "vramwarden.namesDevices" . }}))
|| (oldObject == null
? has(object.metadata.annotations) && object.metadata.annotations.exists(key, {{ include "vramwarden.isDeviceKey" . }})
: {{ include "vramwarden.keysDiffer" (dict "field" "annotations" "condition" (include "vramwarden.isDeviceKey" .)) }})
{{- end }}

{{/* What else we judge: whole GPUs, which in any policy have a domain; mounts by which some container
toolkits show GPUs; GPUs named by hand; debugging containers. */}}
{{- define "vramwarden.isAdvised" -}}
![object, oldObject].exists(pod, pod != null && {{ include "vramwarden.isLarge" . }})
&& ({{ include "vramwarden.isDebugged" . }}
|| {{ include "vramwarden.isByHand" . }}
|| (oldObject == null && [object].exists(pod, {{ include "vramwarden.containers" . }}.exists(container,
(has(container.resources) && has(container.resources.requests)
&& container.resources.requests.exists(name, name.contains('/')))
|| (has(container.volumeMounts)
&& container.volumeMounts.exists(mount, mount.mountPath.contains('nvidia-container-devices')))))))
{{- end }}

{{- define "vramwarden.matchConditions" -}}
{{ include "vramwarden.exemptions" . }}
- name: pod-has-a-demand
  expression: >-
    {{- include "vramwarden.isDemand" . | nindent 4 }}
{{- end }}

{{- define "vramwarden.adviceConditions" -}}
{{ include "vramwarden.exemptions" . }}
- name: pod-has-no-demand
  expression: >-
    !({{- include "vramwarden.isDemand" . | nindent 4 }})
- name: pod-matters
  expression: >-
    {{- include "vramwarden.isAdvised" . | nindent 4 }}
{{- end }}

{{/* What brings a workload to the webhook that only advises: its template, or it itself, has a key of ours, a
near miss of one, or what another product reads. What a controller makes or changes nobody reads about; and a
change that leaves the spec as it is (its status, a count in an annotation) changes no pod. Lists too long to
be gone through are not. */}}
{{- define "vramwarden.templateConditions" -}}
{{ include "vramwarden.exemptNamespaces" . }}
- name: somebody-reads-it
  expression: >-
    !has(object.metadata.ownerReferences)
    && !request.userInfo.username.startsWith('system:serviceaccount:kube-system:')
    && (oldObject == null || !has(object.metadata.generation) || !has(oldObject.metadata.generation)
    || object.metadata.generation != oldObject.metadata.generation)
- name: workload-matters
  expression: >-
    [has(object.spec.jobTemplate) ? object.spec.jobTemplate.spec.template : object.spec.template].exists(pod,
    {{- include "vramwarden.isTemplateOfInterest" . | nindent 4 }})
{{- end }}

{{- define "vramwarden.isTemplateOfInterest" -}}
(!has(pod.metadata.annotations) || pod.metadata.annotations.size() <= 4096)
&& (!has(object.metadata.annotations) || object.metadata.annotations.size() <= 4096)
&& [object.metadata, pod.metadata].exists(about,
(has(about.annotations) && about.annotations.exists(key, {{ include "vramwarden.isLikeOurs" . }}))
|| (has(about.labels) && about.labels.size() <= 4096
&& about.labels.exists(key, key.startsWith('vram') && key.contains('/gpu'))))
|| [{{ include "vramwarden.containers" . }}].exists(all, all.size() <= 512 && all.exists(container,
has(container.resources) && ((has(container.resources.limits) && container.resources.limits.size() <= 256
&& container.resources.limits.exists(key, {{ include "vramwarden.isResourceOfInterest" . }}))
|| (has(container.resources.requests) && container.resources.requests.size() <= 256
&& container.resources.requests.exists(key, {{ include "vramwarden.isResourceOfInterest" . }})))))
{{- end }}

{{/* Whether `key`, of an annotation, is ours, nearly ours, or KAI's. */}}
{{- define "vramwarden.isLikeOurs" -}}
key.startsWith('vram') || key in ['gpu-memory', 'gpu-fraction', 'gpu_memory', 'gpumemory', 'gpu-mem', 'gpumem']
{{- end }}

{{/* Whether `key`, of a resource, is ours, nearly ours, a whole GPU, in whose place a rule may give a share, or
what another product shares GPUs by. */}}
{{- define "vramwarden.isResourceOfInterest" -}}
key.startsWith('vram') || key.startsWith('nvidia.com/gpumem') || key == 'nvidia.com/gpucores'
|| key == 'nvidia.com/gpu' || key.startsWith('aliyun.com/gpu') || key.startsWith('volcano.sh/')
{{- end }}

{{/* Where clients find the webhook. */}}
{{- define "vramwarden.clientConfig" -}}
service:
  name: vramwarden-webhook
  namespace: {{ .root.Release.Namespace | quote }}
  {{- with .path }}
  path: {{ . }}
  {{- end }}
  port: 443
{{- if eq .root.Values.certificates.mode "existingSecret" }}
caBundle: {{ .root.Values.certificates.existingSecret.caBundle | required "certificates.existingSecret.caBundle: set it to the CA that signed the certificate, as PEM text" | b64enc }}
{{- end }}
{{- end }}

{{- define "vramwarden.configurationMetadata" -}}
name: vramwarden
labels:
  {{- include "vramwarden.labels" . | nindent 2 }}
  app.kubernetes.io/component: webhook
{{- end }}

{{/* Whether Helm speaks to a cluster, and so knows its kinds; empty for no, as in `helm template`. */}}
{{- define "vramwarden.isLive" -}}
{{- if .Capabilities.APIVersions.Has "v1/Pod" }}true{{ end }}
{{- end }}

{{/* Whether the cluster is older than a version, e.g. "1.30"; empty for no. A Helm that was built with
`go install` takes 1.20.0 for the version of a cluster that it does not speak to, hence the lower end. */}}
{{- define "vramwarden.isBefore" -}}
{{- if semverCompare (printf ">=1.21.0-0 <%s.0-0" .version) .root.Capabilities.KubeVersion.Version }}true{{ end }}
{{- end }}
