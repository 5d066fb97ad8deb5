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

{{/* matchConditions of both webhooks. They are what an outage is limited to, and what spares all other
pods the call. A condition that fails denies the pod, hence has() before every field. What they let
through is more than `decide` in webhook/core/admission/decide.py judges, never less; tests/chart proves it:
- an annotation or the label of ours: a demand, or our marks
- a resource with a domain: vramwarden.io/vram, and whole GPUs of any policy, which all have one; a limit
  alone has become a request, too, since the API server has filled in what is missing
- NVIDIA_VISIBLE_DEVICES, in pods without a demand too
- names that are reserved for the sidecar and its volumes
An update may add or remove any of these, so the old object counts as well. */}}
{{- define "vramwarden.matchConditions" -}}
{{ include "vramwarden.exemptions" . }}
- name: pod-matters
  expression: >-
    [object, oldObject].exists(pod, pod != null && (
    (has(pod.metadata.annotations) && pod.metadata.annotations.exists(key, key.startsWith('vramwarden.io/')))
    || (has(pod.metadata.labels) && 'vramwarden.io/managed' in pod.metadata.labels)
    || (has(pod.spec.volumes) && pod.spec.volumes.exists(volume, volume.name.startsWith('vram-enforcer')))
    || ((has(pod.spec.containers) ? pod.spec.containers : [])
    + (has(pod.spec.initContainers) ? pod.spec.initContainers : [])).exists(container,
    container.name == 'vram-enforcer'
    || (has(container.env) && container.env.exists(variable, variable.name == 'NVIDIA_VISIBLE_DEVICES'))
    || (has(container.volumeMounts)
    && container.volumeMounts.exists(mount, mount.name.startsWith('vram-enforcer')))
    || (has(container.resources) && has(container.resources.requests)
    && container.resources.requests.exists(name, name.contains('/'))))))
{{- end }}

{{/* Where clients find the webhook. */}}
{{- define "vramwarden.clientConfig" -}}
service:
  name: vramwarden-webhook
  namespace: {{ .root.Release.Namespace | quote }}
  path: {{ .path }}
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
