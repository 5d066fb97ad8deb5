{{/*
The fence: what the API server checks by itself, and so also while we are away. Each policy is a value.
What depends on the rules of the policy in force reads them from the ConfigMap vramwarden-fence, which the
replicas write (webhook/core/policy/fence.py says how). Where it is missing, before the first replica is
ready and after the namespace is deleted, those policies hold nothing.
*/}}

{{/* Whether our own accounts are held to what is theirs; empty for no. */}}
{{- define "vramwarden.hasAccountsFence" -}}
{{- if .Values.fence.accounts }}true{{ end }}
{{- end }}

{{/* Whether unclaimed containers are voided; empty for no. MutatingAdmissionPolicy is of Kubernetes 1.36. */}}
{{- define "vramwarden.hasVoid" -}}
{{- if and .Values.fence.void (semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version) }}true{{ end }}
{{- end }}

{{/* The binding of a ValidatingAdmissionPolicy; call with a dict of root and component, and inNamespaces where
exempt ones are left alone, and ours for what has our label, as it is or as it was. That stands here, since API
servers read the selectors of policies for each request of whatever kind, and those of bindings once the rules
of their policy match. */}}
{{- define "vramwarden.fenceBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  {{- include "vramwarden.metadata" . | nindent 2 }}
spec:
  policyName: vramwarden-{{ .component }}
  {{- with .paramRef }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- if .inNamespaces }}
  matchResources:
    namespaceSelector:
      {{- include "vramwarden.namespaceSelector" .root | trim | nindent 6 }}
    {{- if .ours }}
    objectSelector:
      matchExpressions:
      - {key: vramwarden.io/managed, operator: Exists}
    {{- end }}
  {{- end }}
  validationActions: [Deny]
{{- end }}

{{/* In a binding: where the rules are. */}}
{{- define "vramwarden.fenceParamRef" -}}
paramRef:
  name: vramwarden-fence
  namespace: {{ .Release.Namespace | quote }}
  parameterNotFoundAction: Allow
{{- end }}

{{/* In CEL: the lines of the rules, each as the list of its fields and words. */}}
{{- define "vramwarden.fenceAllLines" -}}
params.?data[?'rules.v2'].orValue('').split('\n').filter(line,
line != '').map(line, line.split(' '))
{{- end }}

{{/* In CEL: those that match the namespace; the first one governs its pods. Fields are a pattern for its
name and labels that it must have, and the same of the exception; all that follows is words. Conditions of a
match know no namespace. */}}
{{- define "vramwarden.fenceLines" -}}
[namespaceObject.metadata.?labels.orValue({})].map(labels,
{{ include "vramwarden.fenceAllLines" . }}.filter(line,
{{ include "vramwarden.fenceIsAt" 0 }} && !({{ include "vramwarden.fenceIsAt" 2 }})))[0]
{{- end }}

{{/* In CEL: whether the namespace is that of two fields of a line; call with the index of the first. */}}
{{- define "vramwarden.fenceIsAt" -}}
{{- $labels := printf "line[%d]" (add . 1) -}}
request.namespace.matches(line[{{ . }}])
&& ({{ $labels }} == '-' || {{ $labels }}.split(',').all(label, [label.split('=')].exists(pair,
labels[?pair[0]] == optional.of(pair[1]))))
{{- end }}

{{/* The containers that a request adds, with the debugging ones that were there. */}}
{{- define "vramwarden.fenceContainers" -}}
({{ include "vramwarden.isDebugged" . }} ? object.spec.?ephemeralContainers.orValue([])
: object.spec.?containers.orValue([]) + object.spec.?initContainers.orValue([]))
{{- end }}

{{/* In CEL: whether a pod has a list that is too long to be gone through, among those that a request may
change. */}}
{{- define "vramwarden.fenceTooMany" -}}
(!{{ include "vramwarden.isDebugged" . }}
&& object.metadata.?annotations.orValue({}).size() > {{ (include "vramwarden.bounds" . | fromJson).unread.entries }})
|| [{{ include "vramwarden.fenceContainers" . }}].exists(all, {{ include "vramwarden.areMany" . }})
{{- end }}

{{/* In CEL: what the second line may have to say of a new pod, of debugging containers, and of an update: those
change annotations and images alone. */}}
{{- define "vramwarden.fenceIsNew" -}}
({{ include "vramwarden.fenceTooMany" . }}
|| 'vramwarden.io/managed' in object.metadata.?labels.orValue({})
|| object.metadata.?annotations.orValue({}).exists(key,
key.startsWith('vramwarden.io/') || {{ include "vramwarden.isDeviceKey" . }})
|| {{ include "vramwarden.newContainers" . }}.exists(container,
'vramwarden.io/vram' in container.?resources.?limits.orValue({}) || {{ include "vramwarden.namesDevices" . }}))
{{- end }}

{{- define "vramwarden.fenceIsDebugger" -}}
({{ include "vramwarden.fenceTooMany" . }}
|| object.spec.?ephemeralContainers.orValue([]).exists(container, {{ include "vramwarden.namesDevices" . }}))
{{- end }}

{{- define "vramwarden.fenceIsAnnotated" -}}
(object.metadata.?labels[?'vramwarden.io/managed'] != oldObject.metadata.?labels[?'vramwarden.io/managed']
|| (object.metadata.?annotations != oldObject.metadata.?annotations && (object.metadata.?annotations.orValue({}).size() > {{ (include "vramwarden.bounds" . | fromJson).unread.entries }}
|| {{ include "vramwarden.marksDiffer" . }}
|| object.metadata.?annotations.orValue({}).exists(key, {{ include "vramwarden.isDeviceKey" . }}
&& object.metadata.annotations[key] != oldObject.metadata.?annotations.orValue({})[?key].orValue('')))))
{{- end }}

{{/* In CEL: the keys, without our prefix, that only a binding or the late assignment writes. */}}
{{- define "vramwarden.marks" -}}
['gpu', 'visible-devices', 'gpu-memory-fraction', 'driver-limit', 'gpu-waits']
{{- end }}

{{/* In CEL: whether an update changes what only we write: which GPUs a pod has, and the rule of its terms. */}}
{{- define "vramwarden.marksDiffer" -}}
(object.metadata.?labels[?'vramwarden.io/managed'] != oldObject.metadata.?labels[?'vramwarden.io/managed']
|| (['admitted'] + {{ include "vramwarden.marks" . }}).exists(key,
object.metadata.?annotations[?'vramwarden.io/' + key] != oldObject.metadata.?annotations[?'vramwarden.io/' + key]))
{{- end }}

{{- define "vramwarden.marksMessage" -}}
vramwarden: the annotations vramwarden.io/gpu, visible-devices, gpu-memory-fraction, driver-limit, gpu-waits
and admitted and the label vramwarden.io/managed are changed by vramwarden alone
{{- end }}

{{/* The name by which the API server knows an account of ours; call with a dict of root and component, and
namespace unless it is the release's. */}}
{{- define "vramwarden.account" -}}
system:serviceaccount:{{ .namespace | default .root.Release.Namespace }}:vramwarden-{{ .component }}
{{- end }}
